"""Rounds: how many slices, in which laps, and that both ways to lay them agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.slice_plans.strategies import HEAP, demands

from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.group import Group
from penstock.scheduling.slices.lap import Lap, LapWriter, Turn
from penstock.scheduling.slices.planner import make_plan
from penstock.scheduling.slices.rounds import rounds
from penstock.scheduling.slices.service import Service
from penstock.scheduling.slices.standing import Standing
from penstock.scheduling.slices.supplier import Supplier
from penstock.scheduling.slices.turns import Turns

MS = 10**6


def test_a_duration_of_300_ms_is_three_slices_of_100_ms_though_their_floats_disagree():
    assert 0.3 / 0.1 != 3.0
    assert Demand.of_seconds("a", 0.3, 0.3).slices(100 * MS) == 3
    assert Demand.of_seconds("a", 0.3, 0.1 + 0.2).slices(100 * MS) == 3
    assert 1.001 * 1e9 < 1_001_000_000
    assert Demand.of_seconds("a", 1, 1.001).duration_ns == 1_001_000_000
    assert Demand("a", 0.3, 300 * MS + 1).slices(100 * MS) == 4
    assert Demand("a", 0, 0).slices(100 * MS) == 0


def test_rounds_that_are_alike_are_one_lap():
    order = [Demand("a", 1, 25), Demand("b", 1, 100), Demand("c", 1, 30)]
    assert rounds(order, 10, switch_ns=1) == (
        Lap(0, (Turn("a", 1, 1, 10), Turn("b", 1, 1, 10), Turn("c", 1, 1, 10)), 2, 1),
        Lap(66, (Turn("a", 3, 3, 5), Turn("b", 3, 3, 10), Turn("c", 3, 3, 10)), 1, 1),
        Lap(94, (Turn("b", 4, 4, 10),), 7, 1),  # after c ended at 93: the last time with a switch
    )
    # Two rounds of 3 * 11, then 5 + 10 + 10 with two switches, then seven of 10 without.
    assert rounds(order, 10, switch_ns=1)[-1].end_ns == 2 * 33 + 27 + 1 + 70


def test_a_plan_of_a_hundred_thousand_rounds_has_as_many_laps_as_ends_of_tenants():
    wanted = [Demand.of_seconds(name, s, s) for name, s in (("a", 100), ("b", 250), ("c", 500))]
    plan = make_plan(wanted, [Supplier("x")], HEAP, window_ns=10**12, lengths_ns=[5 * MS])
    assert (plan.rounds, plan.slice_count) == (100_000, 170_000)
    assert [lap.times for lap in plan.devices[0].laps] == [20_000, 30_000, 50_000]


def test_only_what_goes_on_without_a_gap_in_time_rounds_and_numbers_is_folded():
    for second, folded in (
        (("a", 2, 2, 10, 10), True),
        (("a", 2, 2, 11, 10), False),  # the device was idle
        (("a", 3, 2, 10, 10), False),
        (("a", 2, 3, 10, 10), False),
        (("a", 2, 2, 10, 9), False),
    ):
        writer = LapWriter(switch_ns=1)
        writer.add("a", 1, 1, 0, 10)
        writer.add(*second)
        assert (len(writer.laps()) == 1) == folded, second


@given(demands(arrivals=False), st.integers(1, 20), st.integers(0, 3), st.integers(0, 5))
def test_rounds_and_the_service_slice_by_slice_give_the_same_laps(wanted, slice_ns, switch, seed):
    group = Group.of(wanted, [Supplier("x", switch)], seed)
    standings = [Standing(one, at, one.duration_ns) for at, one in enumerate(group.demands)]
    service = Service(standings, group.suppliers, Turns(HEAP, group.demands), slice_ns)
    assert group.planned_laps(HEAP, slice_ns) == service.run()
