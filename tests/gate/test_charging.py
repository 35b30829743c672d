"""What is charged is the time that the device was busy: by the device's own record, real time.

Bounds are several times the usual error; each case here was once wrong by more than its bound.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.bench.quota import Workload
from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.bench.stage import Sample

PROGRAM = str(Path(__file__).with_name("charging.py"))
WATCHED_S = 2.0
LONG_S = 120  # programs are ended with the stage
MS = 1_000_000


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage("h200") as made:
        yield made


def watch(stage: Stage, settle_s: float = 0.5) -> list[Sample]:
    stage.wait_until_busy(["tenant"])
    stage.watch(settle_s)
    return stage.watch(WATCHED_S)


def share(samples: list[Sample], name: str = "tenant") -> float:
    """Percent of the device over all of `samples`."""
    used = samples[-1].busy_ns.get(name, 0) - samples[0].busy_ns.get(name, 0)
    return 100 * used / (samples[-1].at_ns - samples[0].at_ns)


@pytest.mark.parametrize(
    ("quota", "options"),
    [
        (30, ["--streams", "8", "--sync-every", "5"]),
        (30, ["--streams", "8"]),
        (30, ["--streams", "32"]),
        (60, ["--streams", "64", "--kernel-us", "1000"]),
        (50, ["--threads", "8", "--sync-every", "1"]),
    ],
    ids=str,
)
def test_streams_side_by_side_are_charged_once(
    stage: Stage, quota: float, options: list[str]
) -> None:
    stage.start(stage.tenant("tenant", quota), [*Workload(200).arguments(LONG_S), *options])
    assert share(watch(stage)) == pytest.approx(quota, abs=3)


@pytest.mark.parametrize(
    ("program", "quota"),
    [
        ("costs_that_alternate_under_one_key", 10),
        ("costs_that_alternate_in_the_background", 30),
        ("copies_whose_call_takes_long", 10),
        ("wide_kernels_on_eight_streams", 30),
        ("wide_kernels_waited_for_in_rounds", 50),
        ("kernels_waited_for_by_event", 30),
        ("kernels_waited_for_by_query", 30),
        ("kernels_between_copies", 30),
        ("two_kinds_on_two_streams", 30),
    ],
)
def test_work_that_is_hard_to_measure_gets_its_quota(
    stage: Stage, program: str, quota: float
) -> None:
    stage.start(stage.tenant("tenant", quota), [PROGRAM, program], program=sys.executable)
    assert share(watch(stage)) == pytest.approx(quota, abs=3)


@pytest.mark.parametrize(("kernel_us", "quota"), [(20, 30), (100, 50), (200, 90)])
def test_short_launches_that_are_waited_for_are_charged_what_they_take(
    stage: Stage, kernel_us: float, quota: float
) -> None:
    tenant = stage.tenant("tenant", quota)
    stage.start(tenant, Workload(kernel_us, sync_every=1).arguments(LONG_S))
    assert share(watch(stage)) == pytest.approx(quota, rel=0.08)


def test_processes_that_launch_and_wait_do_not_pay_for_their_context_switches(
    stage: Stage,
) -> None:
    tenant = stage.tenant("tenant", 30)
    for _ in range(4):
        stage.start(tenant, Workload(200, sync_every=1).arguments(LONG_S))
    assert share(watch(stage, 1.0)) == pytest.approx(30, abs=3)
