"""Ways of using streams that a gate could break: nothing hangs, nothing fails because of it."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

from penstock.bench.stage import Stage, windows

PROGRAM = str(Path(__file__).with_name("patterns.py"))


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


def test_memsets_and_copies_inside_the_device_count_as_compute() -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 30)
        stage.start(tenant, [PROGRAM, "memsets_without_end"], program=sys.executable)
        stage.wait_until_busy(["tenant"])
        stage.watch(0.5)
        samples = stage.watch(2.2)
        percents = [window.percent for window in windows(samples, "tenant")]
        assert abs(statistics.fmean(percents) - 30) <= 3
