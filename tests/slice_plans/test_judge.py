"""Records, and what is said of them: blocked work, unscheduled slices, variance."""

from __future__ import annotations

from statistics import pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slice_plans.strategies import HEAP

from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.judge import Judgement, judge
from penstock.scheduling.slices.planner import Algorithm, make_plan
from penstock.scheduling.slices.record import Ran, Record
from penstock.scheduling.slices.supplier import Supplier


def planned(*wanted: Demand, **more):
    """A plan of slices of 10 ns on the devices to which the demands are bound, or on x and y."""
    names = {one.device for one in wanted} - {""} or {"x", "y"}
    options = {"window_ns": 100, "lengths_ns": [10]} | more
    return make_plan(wanted, [Supplier(name) for name in names], HEAP, **options)


A, B = Demand("a", 9, 35, device="x"), Demand("b", 5, 20, device="x")  # slices 4 and 2


def test_who_was_given_all_its_planned_work_is_satisfied_whatever_is_left_of_more():
    ran = (Ran("x", "a", 1, 0, 35), Ran("x", "b", 1, 35, 20))
    assert judge(planned(A, B), Record(ran, {("x", "a"): 500})).is_satisfied


def test_planned_work_for_which_nobody_asked_is_not_blocked():
    judgement = judge(planned(A, B), Record((Ran("x", "a", 1, 0, 10),), {("x", "a"): 3}))
    assert judgement.blocked_ns == {("x", "a"): 3}
    assert judgement.blocking_rate == 3 / 55
    assert judgement.unscheduled == (0, 1, 0, 0), "the first slice that did not run"


def test_slices_with_nothing_to_do_had_their_device():
    ran = (Ran("x", "a", 1, 0, 0), Ran("x", "a", 2, 20, 10), Ran("x", "b", 1, 30, 10))
    left = {("x", "a"): 15, ("x", "b"): 10}
    judgement = judge(planned(A, B), Record(ran, left))
    assert judgement.blocked_ns == left
    # a: 15 ns take two slices, and the first without a device are the third and the fourth.
    assert judgement.unscheduled == (0, 1, 1, 1)


def test_time_that_others_left_idle_counts_as_work_and_not_as_a_slice():
    ran = (Ran("x", "a", 0, 0, 30),)
    judgement = judge(planned(A), Record(ran, {("x", "a"): 5}))
    assert judgement.blocked_ns == {("x", "a"): 5}
    assert judgement.unscheduled == (1, 0, 0, 0)


def test_what_ran_behind_the_window_s_end_does_not_count():
    ran = (Ran("x", "a", 1, 95, 10), Ran("x", "a", 2, 105, 10))
    judgement = judge(planned(A), Record(ran, {("x", "a"): 30}))
    assert judgement.blocked_ns == {("x", "a"): 30}
    assert judgement.unscheduled == (0, 1, 1, 1)


def test_tenants_outside_the_plan_are_not_judged():
    ran = (Ran("x", "stranger", 1, 0, 10),)
    assert judge(planned(A), Record(ran, {("x", "stranger"): 30})).is_satisfied


def test_a_tenant_of_two_devices_is_judged_on_each():
    there = Demand("a", 9, 20, device="x"), Demand("a", 9, 20, device="y")
    ran = (Ran("x", "a", 1, 0, 10), Ran("x", "a", 2, 10, 10))
    judgement = judge(planned(*there), Record(ran, {("y", "a"): 20}))
    assert judgement.blocked_ns == {("y", "a"): 20}


def test_slices_of_a_newcomer_are_due_in_the_rounds_after_it_came():
    wanted = Demand("a", 9, 50), Demand("b", 5, 50), Demand("c", 1, 20, arrival_ns=25)
    plan = make_plan(wanted, [Supplier("x")], HEAP, window_ns=500, lengths_ns=[10])
    assert [one.round for one in plan.slices_of(("", "c"))] == [2, 3]
    judgement = judge(plan, Record((), {("", "c"): 20}))
    assert judgement.unscheduled == (0, 1, 1, 0, 0)


@given(st.lists(st.integers(0, 50), min_size=1))
def test_the_variance_is_that_of_the_population(counts):
    assert Judgement(1, {}, tuple(counts)).variance == pytest.approx(pvariance(counts))


def test_without_rounds_nothing_varies_and_without_plans_nothing_is_blocked():
    judgement = judge(planned(), Record((), {}))
    assert (judgement.variance, judgement.blocking_rate, judgement.is_satisfied) == (0, 0, True)


def test_devices_with_slices_of_their_own_length_are_judged_by_it():
    there = Demand("a", 9, 40, device="x"), Demand("a", 9, 40, device="y")
    plan = planned(*there, chosen={"y": Algorithm(0, 20)})
    judgement = judge(plan, Record((), {("x", "a"): 40, ("y", "a"): 40}))
    assert judgement.unscheduled == (2, 2, 1, 1), "four slices of 10 ns, and two of 20 ns"
