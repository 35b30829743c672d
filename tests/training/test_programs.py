"""Programs that were written for one machine, on several cards: what they print is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.training.support.job import ALONE, run_alone, run_job

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("arguments", [(), ("--workers=2",), ("--micro=3",)], ids=str)
def test_every_rank_prints_what_one_machine_prints(arguments):
    program = PROGRAMS / "squares.py"
    wanted = run_alone(program, *arguments)
    for status, out, errors in run_job(program, *arguments):
        assert status == 0, errors
        assert out == wanted


def test_every_sample_is_on_one_rank_and_faster_ranks_have_more():
    ranks = []
    for status, out, errors in run_job(PROGRAMS / "squares.py", "--count", weights=(3, 1)):
        assert status == 0, errors
        ranks.append([int(line.split()[2]) for line in out.splitlines() if line[0] in "01"])
    assert [sum(batch) for batch in zip(*ranks, strict=True)] == [32] * 7 + [6] + [32] * 7 + [6]
    assert ranks[0][0] == 24


def test_a_loop_that_only_evaluates_and_does_not_say_so_is_an_error():
    for status, out, errors in run_job(PROGRAMS / "squares.py", "--no-eval"):
        assert status == 1
        assert "right" not in out
        assert "a loop over a DataLoader does not train" in errors
        assert "call model.eval() before it" in errors


def test_the_command_runs_a_program_and_rank_0_writes_the_checkpoint(tmp_path):
    code = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (given,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=16, shuffle=True):
    model(given).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model.state_dict(), "model.pt")
found = torch.load("model.pt")
print(all(torch.equal(found[name], one) for name, one in model.state_dict().items()))
print("CUDA" if torch.cuda.is_available() else "CPU", torch.distributed.get_world_size())
"""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "train", "run", "--card=cpu=2", "--card=cpu",
         "--card=cpu", "--", sys.executable, "-c", code],
        env=ALONE, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\nCPU 3\n"), done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["model.pt"]


def test_a_loss_that_cannot_be_split_ends_the_job_and_says_why(tmp_path):
    code = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 3)
for (given,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=16):
    out = model(given)
    torch.nn.functional.cross_entropy(out @ out.T, torch.arange(len(out))).backward()
"""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "train", "run", "--card=cpu", "--card=cpu", "--",
         sys.executable, "-c", code],
        env=ALONE, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "this loss cannot be split over cards: each sample meets each other one" in done.stderr
