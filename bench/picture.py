"""Draws the README's picture of two programs under quotas: `python bench/picture.py FILE.svg`.

Two unmodified CUDA programs run on one simulated H200, and `penstock top` is drawn as it is then.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from penstock.bench.quota import Workload
from penstock.bench.stage import KERNEL_RULES, LAUNCHER
from penstock.cli.render.feed import open_feed
from penstock.cli.render.screen import screen
from penstock_shim import paths

RUNS_S = 20.0
COLUMNS = 96
PROGRAMS = (("train", "40Gi", "60", 2000.0), ("notebook", "8Gi", "30", 500.0))


def started(name: str, memory: str, cores: str, kernel_us: float) -> subprocess.Popen[bytes]:
    """`penstock run` with a program that launches without pause."""
    program = [str(paths.workload_path(LAUNCHER)), *Workload(kernel_us).arguments(RUNS_S)]
    options = ["--memory", memory, "--cores", cores, "--name", name, "--simulate", "h200"]
    command = [sys.executable, "-m", "penstock", "run", "--no-agent", *options, "--", *program]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def drawn() -> str:
    """`penstock top`, as SVG."""
    page = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    feed = open_feed(None, 3.0)
    try:
        feed.picture()
        time.sleep(3)
        page.print(screen(feed.picture(), width=COLUMNS))
    finally:
        feed.close()
    return page.export_svg(title="penstock top")


def main() -> None:
    """Runs both programs and writes the picture."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as state:
        os.environ.update(PENSTOCK_STATE_DIR=state, PENSTOCK_SIM_KERNELS=KERNEL_RULES)
        programs = [started(*one) for one in PROGRAMS]
        try:
            time.sleep(5)
            Path(sys.argv[1]).write_text(drawn(), encoding="utf-8")
        finally:
            for program in programs:
                program.terminate()
            for program in programs:
                program.wait()


if __name__ == "__main__":
    main()
