"""Whole trainings on unlike cards: ResNet-18 and a small GPT have the losses of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.training.conftest import PROGRAMS, penstock

REPOSITORY = Path(__file__).parents[2]
STEPS = {"resnet18": ("20", "float64", "8"), "gpt": ("30", "float64", "32")}


def told(text):
    return {name: [float(one.split()[1]) for one in text.splitlines() if one.startswith(name)]
            for name in ("loss", "weights")}  # fmt: skip


@pytest.mark.parametrize("model", STEPS)
def test_a_loss_curve_over_uneven_and_tiny_batches_is_that_of_one_process(model, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # the program imports tests.card.support
    job = [PROGRAMS / "curves.py", model, *STEPS[model]]
    one = subprocess.run(
        [sys.executable, *job], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    done = penstock(
        "train", "run", "--cards", "cpu=1,cpu=2,cpu=4", "--",
        sys.executable, "-W", "ignore", PROGRAMS / "split_all.py", *job,
    )  # fmt: skip
    expected, found = told(one.stdout), told(done.stdout)
    assert len(found["loss"]) == int(STEPS[model][0]), done.stdout + done.stderr
    assert expected["loss"][-1] < expected["loss"][0]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-9)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-9)
