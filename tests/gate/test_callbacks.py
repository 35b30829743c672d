"""Calls out of callbacks of the driver's are charged and gated as any others, and nothing hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.gate.support.programs import cases, output_of

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1 << 30
WITHOUT_END = "a_recapture_that_fails_is_over"
IN_BETWEEN = "callbacks_come_in_between_the_gates_own_calls"
LEAVES_NOTHING = "calls_of_host_functions_are_refused_and_leave_nothing"


@pytest.mark.parametrize(
    "case",
    [case for case in cases("callbacks") if case not in (WITHOUT_END, LEAVES_NOTHING, IN_BETWEEN)],
)
def test_a_callback_is_treated_like_the_rest_of_the_program(
    program: Callable[[str], str], case: str
) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 20, memory_bytes=4 * GIB)
        output_of(stage.start(tenant, [case], program=program("callbacks")))


def test_a_call_that_a_host_function_is_refused_leaves_nothing_in_flight(
    program: Callable[[str], str],
) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 60)
        child = stage.start(tenant, [LEAVES_NOTHING], program=program("callbacks"))
        assert child.stdout
        assert child.stdout.readline() == "idle\n"
        assert [slot.estimate_ns[0] for slot in tenant.usage.snapshot().slots] == [0]
        output_of(child)


def test_callbacks_that_come_in_between_the_gates_own_calls_hold_nothing_up(
    program: Callable[[str], str],
) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 60)
        child = stage.start(tenant, [IN_BETWEEN], program=program("callbacks"))
        assert child.stdout
        assert child.stdin
        assert child.stdout.readline() == "ready\n"
        stage.machine.inject("out-of-memory", call="cuEventCreate")
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "idle\n"
        assert [slot.estimate_ns[0] for slot in tenant.usage.snapshot().slots] == [0]
        output_of(child)
