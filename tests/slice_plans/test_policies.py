"""Each policy by an example worked out by hand, and run to completion for any demands."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from tests.slice_plans.strategies import demands

from penstock.model import PenstockError
from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.planner import make_plan
from penstock.scheduling.slices.policies import POLICIES, policy_named
from penstock.scheduling.slices.policies.finish_time import rho
from penstock.scheduling.slices.standing import Standing
from penstock.scheduling.slices.supplier import Supplier
from penstock.scheduling.slices.turns import Turns


def tenants(policy: str, *wanted: Demand) -> str:
    """The tenants of all slices of 10 ns on one device, as one word."""
    plan = make_plan(wanted, [Supplier("x")], POLICIES[policy], window_ns=999, lengths_ns=[10])
    return "".join(one.tenant for one in plan.devices[0].slices())


def test_the_heap_serves_everyone_once_a_round():
    word = tenants("heap", Demand("a", 9, 30), Demand("b", 5, 10), Demand("c", 1, 20))
    assert word in {"abcaca", "acbaca"}, "a is the largest, and b and c are its children"


def test_first_come_first_served_goes_by_arrival_to_the_end():
    first, second, third = Demand("a", 1, 20, -5), Demand("b", 1, 20, -9), Demand("c", 1, 10, 15)
    assert tenants("fcfs", first, second, third) == "bbaac"


def test_shortest_first_goes_by_duration_and_lets_those_that_have_begun_end():
    assert tenants("sjf", Demand("a", 1, 30), Demand("b", 1, 20), Demand("c", 1, 10, 5)) == "bbcaaa"


def test_longest_first_goes_by_duration_and_lets_those_that_have_begun_end():
    assert tenants("ljf", Demand("a", 1, 30), Demand("b", 1, 20), Demand("c", 1, 90, 5)) == (
        "aaa" + "c" * 9 + "bb"
    )


def test_strict_priority_lets_a_more_urgent_one_that_comes_take_over():
    routine, urgent = Demand("a", 1, 30, priority=1), Demand("b", 1, 20, 15, priority=2)
    assert tenants("priority", routine, urgent) == "aabba"
    least = Demand("c", 1, 10, -99, priority=0)
    assert tenants("priority", routine, urgent, least) == "aabbac"


def test_max_min_serves_the_least_served_until_it_has_caught_up():
    lagging, ahead = Demand("a", 1, 60, given_ns=5), Demand("b", 1, 30, given_ns=28)
    # a has 5, 15, 25, 35; b has 28 and goes before 35; then a before 38, b before 45, and so on.
    assert tenants("max-min", lagging, ahead) == "aaababab" + "a"


def test_finish_time_fairness_serves_the_largest_rho():
    # At 0: a (40 + 20) / 60 = 1, b (10 + 20) / 20 = 1.5.
    # At 10, b was served: a (50 + 20) / 60 = 1.17, b (20 + 10) / 20 = 1.5: b again, and it ends.
    late = Demand("a", 1, 20, arrival_ns=-40, isolated_ns=60)
    later = Demand("b", 1, 20, arrival_ns=-10, isolated_ns=20)
    assert rho(Standing(late, 0, 20), 0) == 1.0
    assert rho(Standing(later, 0, 20), 0) == 1.5
    assert rho(Standing(later, 0, 10), 10) == 1.5
    assert tenants("finish-time", late, later) == "bbaa"


def test_finish_time_fairness_without_an_isolated_time_takes_that_alone_on_a_device():
    assert rho(Standing(Demand("a", 1, 20, arrival_ns=-40, given_ns=10), 0, 20), 5) == 65 / 30


def test_keys_that_age_are_taken_anew_while_tenants_wait():
    # At 0: a 10 / 10 = 1, b 100 / 50 = 2. Later a grows by 1/10 a ns, b by 1/50 a ns.
    quick = Standing(Demand("a", 1, 10, isolated_ns=10), 0, 10)
    slow = Standing(Demand("b", 1, 100, isolated_ns=50), 1, 100)
    for now_ns, first in ((0, "b"), (30, "a")):
        turns = Turns(POLICIES["finish-time"], [])
        turns.join(quick, 0)
        turns.join(slow, 0)
        assert turns.take(now_ns).demand.tenant == first


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "ljf", "priority"])
@given(wanted=demands(arrivals=False))
def test_run_to_completion_gives_a_tenant_all_its_slices_at_a_stretch(policy, wanted):
    word = tenants(policy, *wanted)
    assert len(list(groupby(word))) == len(set(word))


def test_a_tenant_that_was_not_planned_comes_behind_those_that_were():
    planned = [Demand("a", 1, 30), Demand("b", 5, 30)]
    turns = Turns(POLICIES["heap"], planned)
    for place, one in enumerate([*planned, Demand("c", 99, 30)]):
        turns.join(Standing(one, place, 30), 0)
    assert [turns.take(0).demand.tenant for _ in range(3)] == ["b", "a", "c"]


def test_a_policy_that_is_not_there_is_an_error_that_names_a_similar_one():
    with pytest.raises(PenstockError, match="there is no policy 'max_min'") as told:
        policy_named("max_min")
    assert told.value.fix == "did you mean max-min?"
    assert policy_named("heap").name == "heap"
