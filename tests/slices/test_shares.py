"""Shares of a simulated device while time slices are given, by the device's own record.

Bounds leave room for a loaded machine; what is usual stands in docs/decisions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.bench.quota import Workload
from penstock_shim.time_slices import TimeSlices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.bench.stage import Sample, Stage, StageTenant

pytestmark = pytest.mark.timed

LONG_S = 120  # programs are ended with the stage
FORGES = Path(__file__).with_name("forges.py")
CHARGING = Path(__file__).parent.parent / "gate" / "support" / "charging.py"


@pytest.fixture
def slices() -> Iterator[TimeSlices]:
    with TimeSlices() as made:
        yield made


def percent(samples: list[Sample], name: str) -> float:
    used = samples[-1].busy_ns.get(name, 0) - samples[0].busy_ns.get(name, 0)
    return 100 * used / (samples[-1].at_ns - samples[0].at_ns)


def watched(
    stage: Stage, tenants: Sequence[StageTenant], seconds: float = 3, warm_up_s: float = 1
) -> dict[str, float]:
    names = [tenant.name for tenant in tenants]
    stage.wait_until_busy(names, 30)
    stage.watch(warm_up_s)
    samples = stage.watch(seconds)
    return {name: percent(samples, name) for name in names}


def tenants_of(
    stage: Stage, slices: TimeSlices, *cores: float, **more: object
) -> list[StageTenant]:
    made = [stage.tenant(f"t{i}", c, sharers=len(cores), **more) for i, c in enumerate(cores)]
    for tenant in made:
        slices.add(tenant.name, tenant.directory)
    return made


def backlogged(kernel_us: float) -> list[str]:
    return Workload(kernel_us).arguments(LONG_S)


@pytest.mark.parametrize("cores", [(60, 30), (35, 25, 20, 10)], ids=str)
def test_strict_tenants_get_their_shares(stage, slices, cores):
    made = tenants_of(stage, slices, *cores)
    for tenant in made:
        stage.start(tenant, backlogged(500))
    for got, due in zip(watched(stage, made).values(), cores, strict=True):
        assert due - 2.5 <= got <= due + 1.5
    (figures,) = slices.devices().values()
    assert figures.handed_out
    assert figures.slices > 0


def test_kernels_of_two_lengths_are_charged_what_they_take_beside_others(stage, slices):
    uneven, even = tenants_of(stage, slices, 25, 60)
    stage.start(
        uneven,
        [str(CHARGING), "costs_that_alternate_in_the_background"],
        program=sys.executable,
    )
    stage.start(even, backlogged(500))
    got = watched(stage, [uneven, even], seconds=4, warm_up_s=2)
    assert 20 <= got["t0"] <= 28  # without time slices it is let through more than twice as much
    assert 56 <= got["t1"] <= 62


def test_a_loop_that_launches_and_waits_gets_its_share_beside_a_backlogged_one(stage, slices):
    loop, busy = tenants_of(stage, slices, 40, 40)
    stage.start(loop, Workload(2000, sync_every=1).arguments(LONG_S))
    stage.start(busy, backlogged(2000))
    got = watched(stage, [loop, busy])
    assert 36 <= got["t0"] <= 42
    assert 36 <= got["t1"] <= 42


@pytest.mark.parametrize("cores", [(75, 20), (50, 45)], ids=str)
def test_who_forges_that_it_is_at_work_takes_nothing_of_anothers_share(stage, slices, cores):
    """Before, it had the device four times as long as its share: 75 % got 68."""
    honest, forger = tenants_of(stage, slices, *cores)
    page = str(forger.directory / "usage")
    program = stage.start(None, [str(FORGES), page], program=sys.executable)
    assert program.stdout.readline() == "forges\n"
    stage.start(honest, backlogged(500))
    stage.wait_until_busy([honest.name], 30)
    stage.watch(2)
    got = percent(stage.watch(4), honest.name)
    (figures,) = slices.devices().values()
    assert figures.handed_out
    assert cores[0] - 2.5 <= got <= cores[0] + 1.5


def test_elastic_tenants_share_all_of_the_device_by_their_cores(stage, slices):
    made = tenants_of(stage, slices, 30, 10, mode="elastic")
    for tenant in made:
        stage.start(tenant, backlogged(500))
    got = watched(stage, made)
    assert sum(got.values()) >= 93
    assert 2.6 <= got["t0"] / got["t1"] <= 3.4


def test_an_elastic_tenant_uses_what_a_strict_one_leaves(stage, slices):
    strict, elastic = (
        stage.tenant("t0", 40, sharers=2),
        stage.tenant("t1", 10, sharers=2, mode="elastic"),
    )
    for tenant in (strict, elastic):
        slices.add(tenant.name, tenant.directory)
        stage.start(tenant, backlogged(500))
    got = watched(stage, [strict, elastic])
    assert 37 <= got["t0"] <= 41.5
    assert got["t1"] >= 52


def test_a_changed_share_is_followed(stage, slices):
    first, second = tenants_of(stage, slices, 60, 30)
    for tenant in (first, second):
        stage.start(tenant, backlogged(500))
    watched(stage, [first, second], seconds=1)
    first.change(cores_permille=200, allowance_permille=200)
    got = watched(stage, [first, second], seconds=2)
    assert 17 <= got["t0"] <= 22
    assert 27 <= got["t1"] <= 32


def test_one_tenant_alone_is_given_no_slices_and_keeps_its_share(stage, slices):
    tenant, _idle = tenants_of(stage, slices, 30, 60)
    stage.start(tenant, backlogged(500))
    assert 28 <= watched(stage, [tenant])["t0"] <= 32
    (figures,) = slices.devices().values()
    assert not figures.handed_out
    assert figures.slices == 0
