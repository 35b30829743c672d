"""Draws the README's picture of a pool: `python -m tests.web.support.picture FILE.png [FOLDER]`.

A real manager with simulated nodes serves its page for three minutes while applications come and
go, and headless Chromium draws it. With FOLDER, the same in the dark and on a phone, too.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from selenium.webdriver.common.by import By
from tests.pool.support.fake_node import FakeNode, card
from tests.pool.support.manager_process import ManagerProcess, wait_until
from tests.web.support.browser import browser, screen

HOUR = Duration(seconds=3600)
STEP_S = 10
NODES = {
    "node-0": (("gpu", "NVIDIA H200", 989, 141), ("gpu", "NVIDIA H200", 989, 141)),
    "node-1": (("gpu", "NVIDIA L40S", 362, 48), ("gpu", "NVIDIA L40S", 362, 48),
               ("npu", "Ascend 910B", 320, 64)),
    "node-2": (("npu", "Ascend 910B", 320, 64), ("npu", "Ascend 910B", 320, 64),
               ("fpga", "Alveo V80", 25, 32), ("fpga", "Alveo V80", 25, 32)),
    "node-3": (("gpu", "NVIDIA A100", 312, 80), ("gpu", "NVIDIA A100", 312, 80)),
}  # fmt: skip


def cards_of(name):
    made = []
    for at, (kind, model, tflops, gib) in enumerate(NODES[name]):
        made.append(card(f"{name}-{at}", tflops, kind, gib))
        made[-1].model, made[-1].index = model, at
    return made


def load(manager):
    """Lets applications come and go; a list of the claims that are to be kept."""
    claims = []

    def claim(name, blocks, **fields):
        claims.append(manager.claim(name, blocks, wait=HOUR, **fields))
        wait_until(lambda: manager.phase(name) in {"running", "waiting"})
        time.sleep(STEP_S)

    claim("train-llm", 989)
    claim("notebook-anna", 120)
    claim("render", 240, kind="gpu")
    claim("embed", 200)
    manager.release("embed")
    claim("speech", 300, kind="npu")
    claim("simulation", 560, kind="gpu", priority=1)
    claim("filters", 18, kind="fpga")
    claim("search", 180, priority=2)
    claim("vision", 340, kind="npu")
    claim("fine-tune", 900, priority=10)
    claim("nightly-report", 700)
    claim("retrain-ranking", 1500, priority=5)
    return claims


def main() -> None:
    """Starts the pool, and draws its page."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder, browser() as opened:
        database = f"sqlite:///{folder}/pool.db"
        manager = ManagerProcess(Path(folder), database, "--web-address=127.0.0.1:0").start()
        nodes = []
        try:
            for name in NODES:
                nodes.append(FakeNode(manager, name, cards_of(name)))
                wait_until(
                    lambda name=name: any(n.name == name and n.last for n in manager.state().nodes)
                )
            claims = load(manager)
            opened.get(manager.said("started")["web"])
            take(opened, Path(sys.argv[1]), 1280, 800)
            for folder_ in sys.argv[2:]:
                take(opened, Path(folder_) / "dark.png", 1280, 800, dark=True)
                take(opened, Path(folder_) / "phone.png", 390, 844)
            for one in claims:
                one.cancel()
        finally:
            for one in nodes:
                one.close()
            manager.close()


def take(opened, path, width, height, *, dark=False):
    """Takes a picture of the whole page."""
    screen(opened, width, height, dark=dark)
    wait_until(lambda: opened.find_element(By.ID, "live").text == "live")
    time.sleep(1)
    full = opened.execute_script("return document.documentElement.scrollHeight")
    screen(
        opened,
        width,
        max(height if width > 600 else 0, full),
        dark=dark,
        scale=2 if width < 600 else 1,
    )
    time.sleep(0.5)
    opened.save_screenshot(str(path))


if __name__ == "__main__":
    main()
