"""A launch that the driver refuses never was; one that the gate cannot place does not go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.gate.support.programs import output_of

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

UNTOLD = "a_stream_that_the_driver_does_not_tell_of"
NONE = "streams_and_contexts_that_are_none_are_the_drivers_to_refuse"


@pytest.mark.parametrize("cores", [50, 100])
@pytest.mark.parametrize(
    "case", ["refused_launches_beside_others_on_a_stream", "refused_launches_alone"]
)
def test_nothing_stays_in_flight_of_refused_launches(
    program: Callable[[str], str], case: str, cores: float
) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", cores)
        child = stage.start(tenant, [case], program=program("refused"))
        assert child.stdout
        assert child.stdout.readline() == "idle\n"
        assert [slot.estimate_ns[0] for slot in tenant.usage.snapshot().slots] == [0]
        output_of(child)


def test_a_launch_on_a_stream_that_the_driver_does_not_know_is_refused(
    program: Callable[[str], str],
) -> None:
    with Stage("h200") as stage:
        child = stage.start(stage.tenant("tenant", 50), [UNTOLD], program=program("refused"))
        assert child.stdout
        assert child.stdin
        assert child.stdout.readline() == "ready\n"
        stage.machine.inject("out-of-memory", call="cuStreamGetCtx")
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "refused\n"
        stage.machine.lift()
        child.stdin.write("\n")
        child.stdin.flush()
        output_of(child)


def test_an_invalid_stream_gets_the_drivers_own_error(program: Callable[[str], str]) -> None:
    with Stage("h200") as stage:
        output_of(stage.start(stage.tenant("tenant", 50), [NONE], program=program("refused")))
