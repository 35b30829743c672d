"""The search for another arrangement and slice length."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slice_plans.strategies import HEAP, plans, suppliers_of

from penstock.model import PenstockError
from penstock.scheduling.slices.carry_out import carry_out
from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.judge import judge
from penstock.scheduling.slices.planner import Algorithm, make_plan
from penstock.scheduling.slices.record import Record
from penstock.scheduling.slices.search import search
from penstock.scheduling.slices.supplier import Supplier

WANTED = [
    Demand(tenant, size, size * 10, device="x")
    for tenant, size in zip("abcde", (9, 1, 5, 7, 3), strict=True)
]
X = [Supplier("x", 1)]


def search_after(plan, record=None, **more):
    told = record or carry_out(plan, HEAP, plan.demands, X)
    options = {"seeds": range(4), "lengths_ns": [10, 20, 30]} | more
    return search(plan, told, HEAP, plan.demands, X, **options)


def figures(one):
    return sum(one.judgement.blocked_ns.values()), one.judgement.variance


def test_an_algorithm_that_did_all_planned_work_is_kept_without_a_search():
    plan = make_plan(WANTED, X, HEAP, window_ns=9999, seed=2, lengths_ns=[20])
    (choice,) = search_after(plan)
    assert (choice.device, choice.algorithm) == ("x", Algorithm(2, 20))
    assert choice.candidates == ()
    assert choice.reason == "all planned work was done"


def test_after_blocked_work_the_lowest_blocking_rate_and_then_variance_wins():
    plan = make_plan(WANTED, X, HEAP, window_ns=200, seed=9, lengths_ns=[10])
    (choice,) = search_after(plan)
    assert [one.algorithm for one in choice.candidates] == [
        Algorithm(9, 10),
        *(Algorithm(seed, length) for seed in range(4) for length in (10, 20, 30)),
    ]
    best = min(choice.candidates, key=figures)
    assert choice.algorithm == best.algorithm != Algorithm(9, 10)
    # Longer slices have fewer switches: 1 ns each, of 200 ns in all.
    assert best.algorithm.slice_ns == 30
    assert best.reason == "the lowest blocking rate, and of those the lowest variance"
    again = make_plan(WANTED, X, HEAP, window_ns=200, chosen={"x": choice.algorithm})
    after = judge(again, carry_out(again, HEAP, WANTED, X))
    assert after == best.judgement


def test_each_candidate_says_why_it_was_not_chosen():
    plan = make_plan(WANTED, X, HEAP, window_ns=200, seed=9, lengths_ns=[10])
    (choice,) = search_after(plan)
    least = figures(min(choice.candidates, key=figures))
    for one in choice.candidates:
        if one.algorithm != choice.algorithm:
            blocked_ns, variance = figures(one)
            expected = (
                "more of the planned work" if blocked_ns > least[0]
                else "less evenly" if variance > least[1]
                else "tried after it"
            )  # fmt: skip
            assert expected in one.reason


def test_of_equally_good_ones_the_present_is_kept():
    one = [Demand("a", 1, 500, device="x")]
    plan = make_plan(one, X, HEAP, window_ns=200, seed=9, lengths_ns=[10])
    (choice,) = search_after(plan, lengths_ns=[10])
    assert choice.algorithm == Algorithm(9, 10)
    assert choice.reason.startswith("kept: none of 5 blocks less")


def test_only_devices_that_left_work_unfinished_are_searched():
    wanted = [*WANTED, Demand("f", 1, 10, device="y")]
    both = [*X, Supplier("y", 1)]
    plan = make_plan(wanted, both, HEAP, window_ns=200, seed=9, lengths_ns=[10])
    record = carry_out(plan, HEAP, wanted, both)
    choices = search(plan, record, HEAP, wanted, both, seeds=range(4), lengths_ns=[10, 20, 30])
    assert [one.device for one in choices] == ["x", "y"]
    assert (
        choices[0]
        == search_after(make_plan(WANTED, X, HEAP, window_ns=200, seed=9, lengths_ns=[10]))[0]
    )
    assert choices[1].candidates == ()


def test_devices_that_serve_all_have_one_choice():
    free = [replace(one, device="") for one in WANTED]
    both = [Supplier("x", 1), Supplier("y", 1)]
    plan = make_plan(free, both, HEAP, window_ns=100, seed=9, lengths_ns=[10])
    record = carry_out(plan, HEAP, free, both)
    (choice,) = search(plan, record, HEAP, free, both, seeds=[0, 1], lengths_ns=[10, 20])
    assert choice.device == ""
    assert len(choice.candidates) == 5


def test_candidates_are_tried_against_what_was_asked_for_and_not_against_the_plan():
    plan = make_plan(WANTED, X, HEAP, window_ns=200, seed=9, lengths_ns=[10])
    little = [replace(one, duration_ns=5) for one in WANTED]
    told = Record((), {one.key: one.duration_ns for one in WANTED})  # whatever kept the device busy
    (choice,) = search(plan, told, HEAP, little, X, seeds=[0], lengths_ns=[10])
    assert all(one.judgement.is_satisfied for one in choice.candidates)
    away = [Supplier("x", 1, until_ns=7)]
    (choice,) = search(plan, told, HEAP, WANTED, away, seeds=[0], lengths_ns=[10])
    assert all(sum(one.judgement.blocked_ns.values()) == 250 - 7 for one in choice.candidates)


def test_lengths_that_are_no_lengths_are_refused():
    plan = make_plan(WANTED, X, HEAP, window_ns=200, lengths_ns=[10])
    with pytest.raises(PenstockError, match="a slice of 0 ns"):
        search_after(plan, lengths_ns=[0])


@settings(max_examples=40)
@given(plans(policy=st.just(HEAP)), st.data())
def test_no_candidate_is_better_than_the_choice_and_the_search_repeats(made, data):
    plan, policy = made
    asked = [
        replace(one, duration_ns=one.duration_ns + data.draw(st.integers(0, 9)))
        for one in plan.demands
    ]
    there = suppliers_of(plan, until_ns=data.draw(st.none() | st.integers(1, 99)))
    record = carry_out(plan, policy, asked, there)
    choices = search(plan, record, policy, asked, there, seeds=[0, 1], lengths_ns=[5, 11])
    assert choices == search(plan, record, policy, asked, there, seeds=[0, 1], lengths_ns=[5, 11])
    for choice in choices:
        if choice.candidates:
            chosen = [one for one in choice.candidates if one.algorithm == choice.algorithm]
            assert len(chosen) == 1
            assert all(figures(chosen[0]) <= figures(one) for one in choice.candidates)
