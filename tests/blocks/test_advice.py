"""Advice about claims: what is short, and what would help."""

from __future__ import annotations

import copy

from penstock.scheduling.blocks.advice import advice
from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool
from penstock.scheduling.blocks.rules import Rules

GIB = 1 << 30
S = 10**9


def two_cards(rules: Rules | None = None) -> Pool:
    pool = Pool(rules)
    cards = [Card(f"card{at}", "gpu", 10, 10 * GIB, frees_memory=True) for at in range(2)]
    pool.join("n0", cards, 0)
    return pool


def test_a_claim_above_all_that_is_there_is_told_that_no_release_makes_room_for_it():
    found = advice(two_cards(), Claim(21, span="node"), 0)
    assert found.reason == ("it asks for 21 blocks of 20 in all: no release can make room for it")
    assert found.helps == ("ask for at most 20 blocks", "let another node join the pool")


def test_the_priority_that_would_make_room_is_named_with_the_applications_and_nothing_changes():
    pool = two_cards()
    pool.acquire("batch", Claim(12, priority=3, span="node"), 0)
    before = copy.deepcopy(pool.applications), list(pool.space.nodes[0].runs())
    found = advice(pool, Claim(15, priority=1, span="node"), 1)
    assert "it asks for 15 blocks; 8 are free" in found.reason
    assert found.helps[0] == "with priority 4 or more, application batch is suspended (12 blocks)"
    assert "a claim of 8 blocks would have room now" in found.helps
    assert (pool.applications, list(pool.space.nodes[0].runs())) == before
    assert pool.acquire("urgent", Claim(15, priority=4, span="node"), 2).outcome == "starting"


def test_one_that_was_resumed_lately_is_named_with_the_time_until_it_may_be_suspended():
    pool = two_cards(Rules(min_run_ns=10 * S))
    pool.acquire("low", Claim(20, span="node"), 0)
    pool.acquire("first", Claim(20, 1, span="node"), S)
    pool.suspended("low", 2 * S)
    pool.release("first", 3 * S)
    found = advice(pool, Claim(20, 1, span="node"), 5 * S)
    assert (
        "application low on node n0, which was resumed lately, may be suspended in 8 s: 20 blocks"
        in found.helps
    )
    later = advice(pool, Claim(20, 1, span="node"), 13 * S)
    assert later.reason == ("there is room for it if application low is suspended (20 blocks)")


def test_other_places_with_room_are_named():
    pool = two_cards()
    pool.acquire("a", Claim(6, span="card"), 0)
    pool.acquire("b", Claim(8, span="card"), 0)
    found = advice(pool, Claim(5, span="card"), 1, waits=True)
    assert found.helps == (
        "with priority 1 or more, application a is suspended (6 blocks)",
        "several cards of one node have room for it now: --span node",
        "a claim of 4 blocks would have room now",
    )
    assert advice(pool, Claim(5, span="node"), 1).reason.startswith("there is room for it: blocks ")


def test_a_claim_that_no_card_is_large_enough_for_is_told_where_it_would_fit():
    pool = two_cards()
    found = advice(pool, Claim(11, span="card"), 0)
    assert found.reason == (
        "it asks for 11 blocks, more than there is on one card when nothing runs: no release can "
        "make room for it"
    )
    assert found.helps == (
        "ask for at most 10 blocks",
        "several cards of one node are large enough: --span node",
        "let another node join the pool",
    )
    assert pool.acquire("a", Claim(11, span="card"), 0, wait=True).is_never


def test_a_claim_with_more_memory_than_there_is_is_told_how_much_it_may_have():
    pool = two_cards()
    claim = Claim(4, memory_bytes=12 * GIB, span="card", node="n0")
    found = advice(pool, claim, 0)
    assert found.reason.startswith(
        "it asks for 4 blocks with 12Gi of memory, more than there is on one card of node n0"
    )
    assert found.helps == (
        "ask for at most 3 blocks with 9Gi of memory",
        "ask for at most 10Gi of memory for 4 blocks",
        "several cards of one node are large enough: --span node",
    )
    assert pool.acquire("a", claim, 0, wait=True).is_never
    assert pool.acquire("a", Claim(4, memory_bytes=10 * GIB, span="card"), 0).outcome == "granted"
    crowded = pool.acquire("b", Claim(4, memory_bytes=20 * GIB), 0)
    assert "4 blocks with 20Gi of memory; 16 are free" in crowded.reason
