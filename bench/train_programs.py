"""Programs that nobody wrote for Penstock under penstock train, beside one process; as JSON.

Usage: build/torch/bin/python -m bench.train_programs [NAME …] > bench/results/train_programs.json

Installs Hugging Face's transformers and others into an environment of its own (500 MB beside
torch). `bench/programs` has a program for each; they know nothing of Penstock, and each prints
figures as it trains: losses, norms, metrics. They are small, so on cards no tensor is
too small to be split. `apart`: the largest relative difference of a figure
under `penstock train run --cards cpu=1,cpu=2` from that of one process on the CPU with one thread;
`threads`: the same of one process with two threads. A program that fails has `error`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from bench.beside_torch import python_with

from penstock.bench.interleaved import load_average

PROGRAMS = Path(__file__).with_name("programs")
PACKAGES = [
    "accelerate", "diffusers", "gpytorch", "keras", "lightning", "peft", "pytorch-ignite", "skorch",
    "timm", "torch-geometric", "torchvision", "transformers",
]  # fmt: skip
Figures = list[tuple[str, float]]
CARDS = ["-m", "penstock", "train", "run", "--cards", "cpu=1,cpu=2", "--"]
SPLIT_ALL = Path(__file__).parents[1] / "tests/training/programs/split_all.py"
LEAST = 1e-6  # what is smaller is compared with this


def told(python: Path, program: Path, *, threads: int = 1, on_cards: bool = False) -> Figures | str:
    """The figures that a program prints, by order; a text says what failed."""
    command = [python, "-W", "ignore", *([SPLIT_ALL] if on_cards else []), program]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, *CARDS, *command] if on_cards else command,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1",
                 "PENSTOCK_TRAIN_DIR": folder, "XDG_RUNTIME_DIR": folder},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    if done.returncode:
        return next((" ".join(one) for one in reversed(lines) if one and "rror" in one[0]), "")
    return [(one[1], float(one[2])) for one in lines if one[:1] == ["figure"]]


def apart(one: Figures, other: Figures) -> float:
    """The largest relative difference of figures, which are the same ones."""
    pairs = list(zip(one, other, strict=True))
    assert all(a[0] == b[0] for a, b in pairs)
    return max(abs(a[1] - b[1]) / max(abs(a[1]), LEAST) for a, b in pairs)


def measured(python: Path, program: Path) -> dict[str, Any]:
    """One program in each way."""
    one = told(python, program)
    found = {
        "threads": told(python, program, threads=2),
        "cards": told(python, program, on_cards=True),
    }
    if isinstance(one, str):
        return {"error_of_one_process": one}
    result: dict[str, Any] = {"figures": len(one)}
    for name, figures in found.items():
        key = "apart" if name == "cards" else name
        result |= {"error": figures} if isinstance(figures, str) else {key: apart(one, figures)}
    return result


def main(names: list[str]) -> None:
    """Prints the figures."""
    python, before = python_with("programs", PACKAGES), load_average()
    site = next((python.parents[1] / "lib").glob("python*/site-packages"))
    versions = {one.name: one.version for one in distributions(path=[str(site)])}
    result: dict[str, Any] = {"versions": {name: versions.get(name) for name in PACKAGES}}
    for program in sorted(PROGRAMS.glob("*.py")):
        if not names or program.stem in names:
            result[program.stem] = measured(python, program)
            print(program.stem, result[program.stem], file=sys.stderr)
    print(json.dumps(result | {"load_before": before, "load_after": load_average()}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
