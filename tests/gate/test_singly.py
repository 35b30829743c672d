"""Launches that come one by one cost little: what is well known is measured only now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.gate.support.programs import output_of

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

pytestmark = pytest.mark.timed
MOST_RECORDS = 100  # of events, for the program's 300 launches
LEAST_RECORDS = 3
SLOW_NS = 500_000_000


def reach(child: subprocess.Popen[str], told: str) -> None:
    assert child.stdout
    assert child.stdout.readline() == f"{told}\n"


def go_on(child: subprocess.Popen[str]) -> None:
    assert child.stdin
    child.stdin.write("\n")
    child.stdin.flush()


@pytest.mark.alone  # samples come by time, and on a busy machine the program's pauses are long
@pytest.mark.parametrize("cores", [50, 100])
@pytest.mark.parametrize("records", [LEAST_RECORDS, MOST_RECORDS])
def test_of_a_well_known_kind_few_launches_are_measured_but_always_some(
    program: Callable[[str], str], cores: float, records: int
) -> None:
    """Once, two events were recorded for each launch."""
    with Stage("h200") as stage:
        case = "launches_come_singly"
        child = stage.start(stage.tenant("tenant", cores), [case], program=program("singly"))
        reach(child, "learned")
        stage.machine.inject("slow", delay_ns=SLOW_NS, skip=records, count=1, call="cuEventRecord")
        go_on(child)
        assert int(output_of(child)) == (records == LEAST_RECORDS)


def test_the_charge_of_launches_that_come_singly_follows_their_duration(
    program: Callable[[str], str],
) -> None:
    """From one launch on each takes thirty times as long, and the program waits for none."""
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 90)
        case = "launches_that_come_singly_grow_longer"
        child = stage.start(tenant, [case], program=program("singly"))

        def charged_and_used_ns() -> tuple[int, int]:
            used = sum(record.busy_ns for record in stage.machine.record(0))
            return tenant.usage.snapshot().devices[0].spent_ns, used

        reach(child, "longer")
        go_on(child)
        reach(child, "from here")
        charged_before, used_before = charged_and_used_ns()
        go_on(child)
        reach(child, "done")
        charged, used = charged_and_used_ns()
        go_on(child)
        output_of(child)
    assert 0.85 <= (charged - charged_before) / (used - used_before) <= 1.15
