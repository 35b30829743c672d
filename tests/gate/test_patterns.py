"""Ways of using streams that a gate could break: nothing hangs, nothing fails because of it."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

from penstock.bench.stage import Stage, windows

pytestmark = pytest.mark.timed

PROGRAM = str(Path(__file__).with_name("support") / "patterns.py")


@pytest.mark.parametrize(
    ("pattern", "cores"),
    [
        ("work_behind_a_wait_for_a_blocked_launch", 20),
        ("capture_beside_launches", 30),
        ("refused_launches", 10),
        ("streams_that_come_and_go", 50),
        ("contexts_that_come_and_go", 50),
        ("modules_that_come_and_go", 50),
        ("child_of_a_fork", 50),
    ],
)
def test_a_program_runs_to_its_end_under_a_quota(pattern: str, cores: float) -> None:
    with Stage("h200") as stage:
        program = stage.start(
            stage.tenant("tenant", cores), [PROGRAM, pattern], program=sys.executable
        )
        _, errors = program.communicate(timeout=60)
        assert program.returncode == 0, errors


@pytest.mark.parametrize(
    ("program", "quota"),
    [("memsets_without_end", 30), ("a_capture_left_open_without_end", 10)],
)
def test_a_program_without_end_gets_its_quota(program: str, quota: int) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", quota)
        stage.start(tenant, [PROGRAM, program], program=sys.executable)
        stage.wait_until_busy(["tenant"])
        stage.watch(0.5)
        samples = stage.watch(2.2)
        percents = [window.percent for window in windows(samples, "tenant")]
        assert abs(statistics.fmean(percents) - quota) <= 3
