"""Victims of a claim that lies on one node: as few blocks and applications as brute force finds."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool
from penstock.scheduling.blocks.rules import Rules

GIB = 1 << 30
HELD = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2)), min_size=2, max_size=5)


def least_by_trial(pool: Pool, claim: Claim) -> tuple[int, int] | None:
    """The fewest blocks, then applications, whose end makes room on one node."""
    sums = []
    for node in pool.space.nodes:
        name = node.numbers.name
        there = [
            one for one in pool.applications.values()
            if one.claim.node == name and one.claim.priority < claim.priority
        ]  # fmt: skip
        for count in range(1, len(there) + 1):
            for chosen in combinations(there, count):
                blocks = sum(one.blocks for one in chosen)
                if node.free + blocks >= claim.blocks and claim.node in {"", name}:
                    sums.append((blocks, count))
    return min(sums, default=None)


@settings(max_examples=400, deadline=None)
@given(held=st.lists(HELD, min_size=2, max_size=4), blocks=st.integers(8, 12),
       priority=st.integers(1, 3), names_node=st.booleans())  # fmt: skip
def test_the_fewest_blocks_then_the_fewest_applications_are_suspended(
    held, blocks, priority, names_node
):
    pool = Pool(Rules(patience_ns=0))
    for at, sizes in enumerate(held):
        card = Card(f"card{at}", "gpu", 12, 12 * GIB, frees_memory=True)
        pool.join(f"n{at}", [card], 0)
        for number, (size, urgency) in enumerate(sizes):
            claim = Claim(size, urgency, span="node", node=f"n{at}")
            if size <= pool.space.nodes[at].free:
                pool.acquire(f"a{at}-{number}", claim, 0)
    claim = Claim(blocks, priority, span="node", node="n0" if names_node else "")
    expected = least_by_trial(pool, claim)
    sizes = {name: one.blocks for name, one in pool.applications.items()}
    decision = pool.acquire("urgent", claim, 1)
    if decision.outcome == "granted":
        return
    assert (decision.outcome == "starting") == (expected is not None)
    if expected:
        victims = [action.name for action in decision.actions]
        assert (sum(sizes[name] for name in victims), len(victims)) == expected


def test_one_that_waits_is_served_by_suspension_once_the_others_have_run_for_their_time():
    pool = Pool(Rules(min_run_ns=10))
    pool.join("n0", [Card("card", "gpu", 10, 10 * GIB, frees_memory=True)], 0)
    pool.acquire("low", Claim(10, span="node"), 0)
    pool.acquire("first", Claim(10, 1, span="node"), 1)
    pool.suspended("low", 2)
    pool.release("first", 3)  # low is resumed, and safe until 13
    assert pool.acquire("second", Claim(10, 1, span="node"), 4, wait=True).outcome == "waiting"
    assert pool.settle(12) == []
    assert [(one.what, one.name) for one in pool.settle(13)] == [("suspend", "low")]
    assert [(one.what, one.name) for one in pool.suspended("low", 14)] == [("start", "second")]
