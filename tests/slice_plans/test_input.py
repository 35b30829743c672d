"""Input that cannot be planned: what the error says."""

from __future__ import annotations

import math

import pytest
from tests.slice_plans.strategies import HEAP

from penstock.model import PenstockError
from penstock.scheduling.slices.carry_out import carry_out
from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.planner import Algorithm, make_plan
from penstock.scheduling.slices.policies import POLICIES
from penstock.scheduling.slices.supplier import Supplier

ONE = (Supplier("x"),)


def plan(wanted, suppliers=ONE, policy=HEAP, **more):
    return make_plan(wanted, suppliers, policy, **({"window_ns": 10**9} | more))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_workload_or_duration_is_finite_and_not_negative(value):
    with pytest.raises(PenstockError, match="tenant a has the workload"):
        Demand.of_seconds("a", value, 1.0)
    with pytest.raises(PenstockError, match="tenant a has the duration"):
        Demand.of_seconds("a", 1.0, value)


def test_a_demand_may_have_arrived_before_the_window():
    assert Demand.of_seconds("a", 1.0, 1.0, arrival_s=-0.5).ready_ns == 0


def test_a_demand_has_a_tenant_and_a_device_a_name():
    with pytest.raises(PenstockError, match="no tenant"):
        Demand("", 1, 1)
    with pytest.raises(PenstockError, match="no name"):
        Supplier("")


def test_a_tenant_has_one_demand_for_a_device():
    with pytest.raises(PenstockError, match="tenant a has two demands"):
        plan([Demand("a", 1, 1), Demand("a", 2, 2)])
    with pytest.raises(PenstockError, match="tenant a has two demands on device x"):
        plan([Demand("a", 1, 1, device="x"), Demand("a", 2, 2, device="x")])


def test_all_demands_are_bound_or_none_is():
    with pytest.raises(PenstockError, match="not bound: b") as told:
        plan([Demand("a", 1, 1, device="x"), Demand("b", 1, 1)])
    assert told.value.fix == "bind all, or none"


def test_a_demand_is_bound_to_a_device_that_is_there():
    with pytest.raises(PenstockError, match="tenant a is bound to device y, which is not there"):
        plan([Demand("a", 1, 1, device="y")])


def test_devices_are_there_once_and_switches_cost_no_less_than_nothing():
    with pytest.raises(PenstockError, match="no device"):
        plan([], [])
    with pytest.raises(PenstockError, match="device x is listed twice"):
        plan([], [Supplier("x"), Supplier("x")])
    with pytest.raises(PenstockError, match="switch cost of -1 ns"):
        Supplier("x", -1)


def test_a_device_that_was_away_is_there_again_only_afterwards():
    nothing = plan([])
    stays = [Supplier("x", until_ns=10), Supplier("x", from_ns=10, until_ns=20)]
    assert carry_out(nothing, HEAP, [], stays).ran == ()
    with pytest.raises(PenstockError, match="device x is listed twice"):
        carry_out(nothing, HEAP, [], [*stays, Supplier("x", from_ns=19)])
    with pytest.raises(PenstockError, match="device x is listed twice"):
        carry_out(nothing, HEAP, [], [*stays, Supplier("x")])


def test_windows_and_slices_are_longer_than_nothing():
    with pytest.raises(PenstockError, match="window of 0 ns"):
        plan([], window_ns=0)
    with pytest.raises(PenstockError, match="a slice of 0 ns"):
        plan([], lengths_ns=[5, 0])
    with pytest.raises(PenstockError, match="no slice length"):
        plan([], lengths_ns=[])
    with pytest.raises(PenstockError, match="a slice of -1 ns"):
        plan([], chosen={"x": Algorithm(0, -1)})


def test_slices_that_are_laid_one_by_one_are_bounded_and_others_are_not():
    long = [Demand("a", 1, 10**9)]
    with pytest.raises(PenstockError, match="would have 1000000000 slices of 1 ns"):
        plan(long, policy=POLICIES["fcfs"], lengths_ns=[1])
    assert plan(long, lengths_ns=[1]).rounds == 10**9


def test_a_plan_is_made_as_if_every_device_stayed():
    wanted = [Demand("a", 1, 40), Demand("b", 2, 40, arrival_ns=7)]
    stays = [Supplier("x", 1), Supplier("y", 1)]
    leaves = [Supplier("x", 1, until_ns=20), Supplier("y", 1, from_ns=30)]
    assert plan(wanted, leaves, lengths_ns=[10]) == plan(wanted, stays, lengths_ns=[10])


def test_a_plan_of_nothing_is_a_plan():
    nothing = plan([])
    assert (nothing.slice_count, nothing.rounds, nothing.end_ns) == (0, 0, 0)
    assert nothing.mean_wait_ns == 0
    idle = plan([Demand("a", 0, 0, device="x")], [Supplier("x"), Supplier("y")])
    assert [device.laps for device in idle.devices] == [(), ()]
    assert "nothing to plan" in idle.devices[0].reason


def test_of_lengths_that_cost_the_same_the_longest_is_chosen():
    made = plan([Demand("a", 1, 40)], lengths_ns=[10, 40, 20])
    assert [one.cost_ns for one in made.devices[0].lengths] == [0, 0, 0]
    assert made.devices[0].slice_ns == 40


def test_what_is_settled_is_not_chosen_again():
    wanted = [Demand("a", 1, 40, device="x"), Demand("a", 1, 40, device="y")]
    there = [Supplier("x"), Supplier("y")]
    made = plan(wanted, there, lengths_ns=[10], seed=3, chosen={"y": Algorithm(7, 20)})
    assert [(one.seed, one.slice_ns) for one in made.devices] == [(3, 10), (7, 20)]
    assert "no other length" in made.devices[1].reason


def test_a_device_of_its_own_is_planned_alike_alone_and_among_others():
    wanted = [
        Demand(tenant, size, size * 9, device=device)
        for device in "xyz"
        for size, tenant in enumerate("abcdef")
    ]
    everything = plan(wanted, [Supplier(device, 1) for device in "xyz"], seed=5)
    alone = plan([one for one in wanted if one.device == "y"], [Supplier("y", 1)], seed=5)
    assert alone.devices[0] == everything.devices[1]
    assert alone == everything.parts()["y"]
