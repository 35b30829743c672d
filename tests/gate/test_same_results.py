"""Captures, launches and graphs of every kind give the same results with the shim and without."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import pytest
from tests.gate.support.programs import cases, output_of

from penstock.bench.stage import Stage, windows

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timed

# What runs to its end and prints nothing that depends on time.
COMPARED = [
    (name, case)
    for name in ("captures", "variants", "graphs")
    for case in cases(name)
    if not any(word in case for word in ("without_end", "flood", "nobody_settles"))
]
BUSY_MS = {
    "a_while_node_runs_its_body_as_often_as_its_condition_says": 200,
    "a_switch_and_an_if_run_what_a_kernel_chose": 100,
    "a_kernel_launches_a_graph_from_the_device": 100,
    "changes_of_an_executable": 126,
}


@pytest.mark.parametrize(("name", "case"), COMPARED)
def test_a_program_sees_what_it_would_see_without_the_shim(
    program: Callable[[str], str], name: str, case: str
) -> None:
    with Stage("h200,2") as stage:
        tenant = stage.tenant("tenant", 30)
        bare = output_of(stage.start(None, [case], program=program(name), tag="bare"))
        assert output_of(stage.start(tenant, [case], program=program(name))) == bare
        if case in BUSY_MS:
            busy = stage.sample().busy_ns
            for who in ("bare", "tenant"):
                assert abs(busy[who] / 1e6 - BUSY_MS[case]) < 1
            assert abs(tenant.usage.snapshot().devices[0].spent_ns / 1e6 - BUSY_MS[case]) < 5


def test_copies_and_host_functions_have_counters_of_their_own(
    program: Callable[[str], str],
) -> None:
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 100)
        child = stage.start(tenant, ["copies_and_host_functions"], program=program("variants"))
        output_of(child)
        used = tenant.usage.snapshot().devices[0]
    assert (used.copies, used.copied_bytes, used.host_functions) == (7, 32768, 4)
    assert used.launches == 5


def test_dependent_launches_keep_their_overlap(program: Callable[[str], str]) -> None:
    """A launch begins 2 us earlier if nothing lies between it and the one before: 6 ms of 60."""
    case = "a_chain_of_kernels_that_overlap"
    with Stage("h200") as stage:
        output_of(stage.start(None, [case], program=program("graphs"), tag="bare"))
        output_of(stage.start(stage.tenant("free", 100), [case], program=program("graphs")))
        output_of(stage.start(stage.tenant("gated", 40), [case], program=program("graphs")))
        busy = {name: ns / 1e6 for name, ns in stage.sample().busy_ns.items()}
    assert busy["bare"] < 55
    assert busy["free"] - busy["bare"] < 0.6
    assert busy["gated"] - busy["bare"] < 1.2


def test_a_graph_that_became_longer_cannot_flood_the_device(program: Callable[[str], str]) -> None:
    case = "a_graph_that_became_longer_cannot_flood_the_device"
    with Stage("h200") as stage:
        child = stage.start(stage.tenant("tenant", 30), [case], program=program("graphs"))
        assert float(output_of(child)) >= 600  # all at once take no time at all


def test_a_graph_that_changes_with_every_launch_gets_its_quota(
    program: Callable[[str], str],
) -> None:
    case = "a_graph_that_changes_with_every_launch_without_end"
    with Stage("h200") as stage:
        stage.start(stage.tenant("tenant", 30), [case], program=program("graphs"))
        stage.wait_until_busy(["tenant"])
        stage.watch(0.5)
        percents = [window.percent for window in windows(stage.watch(1.6), "tenant")]
        assert abs(statistics.fmean(percents) - 30) <= 3
