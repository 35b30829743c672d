"""Contexts that live on after a release are left as they are; those that end leave nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.gate.support.programs import cases, output_of

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

ENDLESS = "a_launch_without_end_between_releases"
WATCHED = [
    "threads_release_and_retain_at_the_same_time",
    "a_context_that_ends_unseen_is_forgotten_with_the_next_one",
    "a_reset_that_others_hold_against_ends_the_context_all_the_same",
    "a_context_that_is_destroyed_in_vain_loses_nothing",
    "contexts_of_many_threads_come_and_go",
    "threads_that_find_a_context_at_the_same_time_leave_nothing",
]


@pytest.mark.parametrize("cores", [50, 100])
@pytest.mark.parametrize(
    "case", [case for case in cases("held") if case not in (*WATCHED, ENDLESS)]
)
def test_a_context_that_others_hold_is_left_as_it_is(
    program: Callable[[str], str], case: str, cores: float
) -> None:
    with Stage("h200") as stage:
        output_of(stage.start(stage.tenant("tenant", cores), [case], program=program("held")))


@pytest.mark.parametrize("case", WATCHED)
def test_nothing_stays_in_flight_of_contexts_that_come_and_go(
    program: Callable[[str], str], case: str
) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 60)
        child = stage.start(tenant, [case], program=program("held"))
        assert child.stdout
        assert child.stdout.readline() == "idle\n"
        assert [slot.estimate_ns[0] for slot in tenant.usage.snapshot().slots] == [0]
        output_of(child)
