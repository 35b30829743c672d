"""Whole programs that nobody wrote for this device run unchanged, as processes of their own."""

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
SLOW = "ignore:slow on device penstock"  # warnings of lines that wait for the cards
NAMES = ["words", "adversaries", "variational", "resolution", "siamese", "policy", "patches"]


def _run(name, *arguments):
    """What a program prints. It must end well and say nothing else, not even at its end."""
    ended = subprocess.run(
        [sys.executable, "-W", SLOW, PROGRAMS / f"{name}.py", *arguments],
        env={**os.environ, "PENSTOCK_CARD": "cpu=1,cpu=2", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    errors = [line for line in ended.stderr.splitlines() if "jit.script" not in line
              and "warnings.warn(" not in line]  # fmt: skip
    assert (ended.returncode, errors) == (0, [])
    return ended.stdout


def _on_cpu(name, *arguments):
    """What a program prints on the CPU, in this process, which has imported torch already."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    return printed.getvalue()


def _assert_same(found, wanted, rel=2e-3):
    numbers = [re.findall(r"-?\d+\.?\d*", text) for text in (found, wanted)]
    assert len(numbers[1]) >= 3
    assert [float(one) for one in numbers[0]] == pytest.approx(
        [float(one) for one in numbers[1]], rel=rel, abs=2e-3
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_program_prints_on_the_device_what_it_prints_on_the_cpu(name):
    _assert_same(_run(name, "penstock"), _on_cpu(name, "cpu"))


def test_a_program_with_mixed_precision_prints_nearly_the_same():
    _assert_same(_run("patches", "penstock", "mixed"), _on_cpu("patches", "cpu"), rel=0.1)


def test_a_program_finds_the_device_by_itself_and_its_file_is_read_without_it(tmp_path):
    file = tmp_path / "model.pt"
    found = _run("digits", "--dropout", "0", "--save", str(file))
    _assert_same(found, _on_cpu("digits", "--dropout", "0", "--cpu"))
    import torch

    weight = torch.load(file, map_location="cpu")["conv1.weight"]
    assert weight.device.type == "cpu"
    assert weight.abs().sum().item() > 0


def test_a_program_with_dropout_learns():
    assert len(_run("digits").splitlines()) == 6


def test_the_program_of_the_check_on_a_real_gpu_says_how_far_it_is_from_the_cpu():
    program = Path(__file__).parents[1] / "gpu" / "programs" / "virtual_card.py"
    words = [sys.executable, str(program), f"cpu=4@{200 << 20},cpu=1", "300"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["difference"] < 1e-4
    assert found["again"] < 1e-4
    assert found["refused"]
    assert found["total_bytes"][0] == 200 << 20
