"""Learned costs are kept in tables of a fixed size and forgotten only where they must be.

What the gate expects of a launch stands in the usage page while the launch is out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.gate.support.programs import output_of

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from penstock.bench.stage import StageTenant

LONG_NS = 150_000_000  # what the kernel takes that is looked at; all others take about 1 us


def expected_ns(tenant: StageTenant, child: subprocess.Popen[str]) -> int:
    """The time that the gate expects of the launch in flight."""
    assert child.stdout
    assert child.stdin
    assert child.stdout.readline() == "launched\n"
    (slot,) = tenant.usage.snapshot().slots
    child.stdin.write("\n")
    child.stdin.flush()
    return slot.estimate_ns[0]


@pytest.mark.parametrize(
    "case",
    [
        "a_module_is_unloaded_beside_one_that_is_known",
        "a_known_function_is_launched_in_a_new_shape",
        "another_thread_takes_the_place_of_a_kind",
        "kernels_that_nobody_launches_are_listed",
    ],
)
def test_costs_learned_of_a_function_stay(program: Callable[[str], str], case: str) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 100)
        child = stage.start(tenant, [case], program=program("kinds"))
        # Less than it takes where the launches before overlapped; of the unknown some microseconds.
        assert expected_ns(tenant, child) > LONG_NS / 10
        output_of(child)


def test_costs_learned_of_an_unloaded_module_are_forgotten(program: Callable[[str], str]) -> None:
    case = "a_module_is_loaded_where_a_long_kernel_was_unloaded"
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 100)
        child = stage.start(tenant, [case], program=program("kinds"))
        assert expected_ns(tenant, child) < LONG_NS / 2
        output_of(child)


def test_ever_new_shapes_take_no_more_memory_and_forgotten_kinds_are_learned_again(
    program: Callable[[str], str],
) -> None:
    """Once, each took 176 bytes for ever: 34 MiB."""
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 100)
        child = stage.start(tenant, ["two_hundred_thousand_shapes"], program=program("kinds"))
        assert child.stdout
        assert int(child.stdout.readline()) < 4 << 10
        assert expected_ns(tenant, child) > LONG_NS / 2
        output_of(child)


def test_threads_share_tables_that_are_too_small_for_them(program: Callable[[str], str]) -> None:
    case = "threads_launch_more_kinds_than_there_is_room_for_while_modules_go"
    with Stage("h200") as stage:
        output_of(stage.start(stage.tenant("tenant", 50), [case], program=program("turnover")))
