"""Lost cards of a virtual card: how long until all cards work again, and until the step is done.

Usage: build/torch/bin/python -m bench.card_back [KILLS] > bench/results/card_back.json

Two CPU cards without quotas train a GPT and a ResNet-18 (`card_training.py`), with snapshots. In
each of KILLS steps, some seconds apart, one of the cards is killed at a random moment of the step.
A figure is the median over the kills, with quartiles and the worst. `run_s`: until all workers run
again. `back_s`: how much longer the steps took than those without a kill (`step_s`), so until the
program is where it would have been: the loss was noticed, and the cards have done again what they
did since the last snapshot.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.card_training import step_of

from penstock.bench.interleaved import load_average, quartiles

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = {"gpt": 16, "resnet18": 8}
BEFORE_S = 7.0  # until the first kill; longer than the time between two snapshots
BETWEEN_STEPS = 3, 20


def child(model: str, kills: int) -> None:
    """Measures in this process."""
    import torch

    from penstock.card.device.start import session

    torch.set_num_threads(1)
    step = step_of(model, "penstock", SAMPLES[model])
    until_s, times_s = time.monotonic() + BEFORE_S, []
    while time.monotonic() < until_s:
        times_s.append(timed(step))
    step_s = statistics.median(times_s[len(times_s) // 2 :])
    chance = random.Random(1)  # noqa: S311 - moments, the same in each run
    back_s = []
    for _ in range(kills):
        for _ in range(chance.randrange(*BETWEEN_STEPS)):
            step()
        pid = chance.choice(session().cards.cards).pid
        later = threading.Timer(step_s * chance.random(), os.kill, (pid, signal.SIGKILL))
        began_s, steps = time.monotonic(), 0
        later.start()
        while any(one.pid == pid for one in session().cards.cards):
            step()
            steps += 1
        back_s.append(time.monotonic() - began_s - steps * step_s)
    print(json.dumps({"step_s": step_s, "back_s": back_s}), flush=True)


def timed(step: Callable[[], float]) -> float:
    """The seconds of a step."""
    began_s = time.monotonic()
    step()
    return time.monotonic() - began_s


def run(model: str, kills: int) -> dict[str, Any]:
    """The figures of a model, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--child", model, str(kills)],
            env={**os.environ, "PENSTOCK_CARD": "cpu=1,cpu=1", "PENSTOCK_CARD_RECOVERY": "on",
                 "PENSTOCK_CARD_EVENTS": str(events), "XDG_RUNTIME_DIR": folder,
                 "PYTHONPATH": os.pathsep.join(
                     [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        run_s = [
            float(one) for one in re.findall(r"run again after ([\d.]+) s", events.read_text())
        ]
    found = json.loads(done.stdout)
    return {
        "step_s": found["step_s"],
        "run_s": quartiles(run_s), "run_worst_s": max(run_s),
        "back_s": quartiles(found["back_s"]), "back_worst_s": max(found["back_s"]),
    }  # fmt: skip


def main(kills: int) -> None:
    """Prints the figures."""
    result: dict[str, Any] = {"kills": kills, "load_before": load_average()}
    result |= {model: run(model, kills) for model in SAMPLES}
    result["load_after"] = load_average()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
