"""PyTorch programs with a card of a real pool: `penstock run --tflops`, the device, the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.pool_cli.test_real import BLOCKS, is_free, phases, real

__all__ = ["real"]
REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / "build" / "torch" / "bin" / "python"
STEPS = "--steps=3"


@pytest.fixture
def torch_python():
    if not PYTHON.exists():
        pytest.skip("no environment with torch: make build/torch/.installed")
    return str(PYTHON)


def losses(text):
    return [float(line.rpartition(" ")[2]) for line in text.splitlines()]


@pytest.mark.parametrize("program", ["images.py", "words.py"])
def test_a_pytorch_program_trains_on_blocks_of_the_pool_and_gives_them_back(
    real, torch_python, program
):
    file = str(REPOSITORY / "examples" / "pytorch" / program)
    wanted = subprocess.run(
        [torch_python, file, "--device=cpu", STEPS], capture_output=True, text=True, check=True
    )
    command = [sys.executable, "-m", "penstock", "run", "--tflops", "50", "--name", "train", "--"]
    process = subprocess.Popen(
        [*command, torch_python, file, STEPS], env=real.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    real.started.append(process)
    wait_until(lambda: phases(real).get("train") == "running", 60)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert losses(out) == pytest.approx(losses(wanted.stdout), rel=1e-3)
    assert "50 blocks (1-50)" in errors
    wait_until(lambda: is_free(real), 30)


def test_more_than_the_pool_has_is_refused_before_the_program_starts(real, torch_python):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", "--tflops", str(BLOCKS + 1), "--", torch_python,
         "-c", "print('started')"],
        env=real.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"it asks for {BLOCKS + 1} blocks of {BLOCKS}" in done.stderr
    assert "started" not in done.stdout
