"""Waiting applications suspend others, and suspended ones resume, as soon as that is possible."""

from __future__ import annotations

import pytest

from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool, Rules


@pytest.fixture
def pool() -> Pool:
    made = Pool(Rules(min_run_ns=5))
    made.join("node0", [Card("uuid", "gpu", 10, 0, model="a", frees_memory=True)], 0)
    return made


def test_a_waiter_suspends_a_resumed_application_once_that_has_run_for_its_time(pool):
    pool.acquire("low", Claim(10, 0, span="node"), 0)
    pool.acquire("high", Claim(10, 3, span="node"), 0)
    pool.suspended("low", 0)
    (resumed,) = pool.release("high", 10)
    assert resumed.what == "resume"
    assert pool.acquire("middle", Claim(10, 2, span="node"), 11, wait=True).outcome == "waiting"
    assert pool.settle(14) == []
    (action,) = pool.settle(15)
    assert (action.what, action.name) == ("suspend", "low")
    assert [one.name for one in pool.suspended("low", 16)] == ["middle"]


def test_a_waiter_takes_what_became_free_together_with_what_can_be_suspended(pool):
    pool.acquire("low", Claim(5, 0, span="node"), 0)
    pool.acquire("equal", Claim(5, 3, span="node"), 0)
    assert pool.acquire("waits", Claim(10, 3, span="node"), 0, wait=True).outcome == "waiting"
    (action,) = pool.release("equal", 1)
    assert (action.what, action.name) == ("suspend", "low")


def test_an_application_is_resumed_on_cards_of_the_kind_that_it_asked_for_alone():
    pool = Pool(Rules(min_run_ns=0))
    kinds = [Card("npu0", "npu", 10, 0, model="m", frees_memory=True),
             Card("gpu0", "gpu", 10, 0, model="m", frees_memory=True)]  # fmt: skip
    pool.join("node0", kinds, 0)
    pool.acquire("low", Claim(10, 0, kind="gpu", span="node"), 0)
    pool.acquire("high", Claim(10, 3, kind="gpu", span="node"), 0)
    assert pool.suspended("low", 0)
    assert pool.settle(1) == []
    (resumed,) = pool.release("high", 2)
    assert (resumed.what, resumed.name) == ("resume", "low")
