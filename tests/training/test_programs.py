"""Programs that were written for one machine, on several cards: what they print is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.support.job import run_alone, run_job

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


def test_two_optimizers_have_their_own_parameters_on_every_rank():
    wanted = run_alone(PROGRAMS / "adversaries.py")
    for _ in range(3):  # the order of a set differs from process to process
        for status, out, errors in run_job(PROGRAMS / "adversaries.py"):
            assert status == 0, errors
            assert out == wanted
