"""Loss curves of ResNet-18 and a small GPT on unlike cards beside one process's; as JSON.

Usage: build/torch/bin/python bench/train_curves.py [STEPS [WIDTH [MODEL]]] > NAME.json

Under `penstock train run --cards cpu=1,cpu=2,cpu=4`, with batches of 1 to 9 samples, so
that cards have none, and with no tensor too small to be split. Both run for 200 steps, in float64
and float32, with 64 channels (WIDTH) in the first layers;
`tests/training/programs/curves.py` says with which optimizers and data.

`cards`: the largest relative difference of a loss from that of one process with one thread, in all
steps and until certain ones; `weights` that of the sum of all weights' magnitudes at the end. What
rounding alone makes of a program in float32 is said by `threads`, the difference of one process
with two threads, and by the distance from float64 with the same data and first weights:
`one_to_float64` of one process, `cards_to_float64` of the cards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.bench.interleaved import load_average

ROOT = Path(__file__).parents[1]
CARDS, UNTIL = "cpu=1,cpu=2,cpu=4", (10, 50, 100, 200)
PROGRAM = "tests/training/programs/curves.py"


def told(command: list[str], threads: int = 1) -> tuple[list[float], float]:
    """The losses and the digest that a program prints."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PENSTOCK_TRAIN_DIR": folder,
                 "XDG_RUNTIME_DIR": folder,
                 "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    (weights,) = [float(one[1]) for one in lines if one[0] == "weights"]
    return [float(one[1]) for one in lines if one[0] == "loss"], weights


def apart(losses: list[float], others: list[float]) -> dict[str, float]:
    """The largest relative difference, of all and of the first steps."""
    both = [abs(b - a) / abs(a) for a, b in zip(losses, others, strict=True)]
    return {"all": max(both)} | {str(step): max(both[:step]) for step in UNTIL if step < len(both)}


def measured(model: str, dtype: str, steps: int, width: int) -> dict[str, Any]:
    """One model in one type of numbers: one process, and cards."""
    python = [sys.executable, "-W", "ignore"]
    job = [PROGRAM, model, str(steps), dtype, str(width)]
    one, one_weights = told([*python, *job])
    cards, weights = told(
        [*python, "-m", "penstock", "train", "run", "--cards", CARDS, "--", *python,
         "tests/training/programs/split_all.py", *job]
    )  # fmt: skip
    found: dict[str, Any] = {
        "first_loss": one[0], "last_loss": one[-1], "cards": apart(one, cards),
        "weights": abs(weights / one_weights - 1), "curve": {"one": one, "cards": cards},
    }  # fmt: skip
    if dtype == "float32":
        found["threads"] = apart(one, told([*python, *job], threads=2)[0])
    print(model, dtype, found["cards"], found.get("threads"), file=sys.stderr)
    return found


def main(steps: int, width: int, models: list[str]) -> None:
    """Prints the figures."""
    result: dict[str, Any] = {"cards": CARDS, "steps": steps, "width": width}
    result["load_before"] = load_average()
    for model in models:
        both = {dtype: measured(model, dtype, steps, width) for dtype in ("float64", "float32")}
        exact, rounded = both["float64"]["curve"]["one"], both["float32"]["curve"]
        both["float32"] |= {f"{arm}_to_float64": apart(exact, rounded[arm]) for arm in rounded}
        result[model] = both
    result["load_after"] = load_average()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:3]]
    main(
        given[0] if given else 200, given[1] if len(given) > 1 else 64,
        sys.argv[3:] or ["resnet18", "gpt"],
    )  # fmt: skip
