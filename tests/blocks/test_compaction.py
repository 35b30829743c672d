"""The plan that packs everything: each move finds its blocks free, and gains something."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduling.blocks import compaction
from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool

GIB = 1 << 30
CLAIMS = st.builds(
    Claim,
    blocks=st.integers(1, 14),
    memory_bytes=st.none() | st.integers(0, 3 * GIB),
    kind=st.sampled_from(["", "", "gpu", "npu"]),
    span=st.sampled_from(["pool", "pool", "node", "card"]),
)
POOLS = st.lists(st.tuples(CLAIMS, st.booleans()), min_size=1, max_size=40)


def pool_with(claims: list[tuple[Claim, bool]]) -> Pool:
    """Four nodes with three cards each; of the claims, those with False have ended."""
    pool = Pool()
    for at in range(4):
        kinds = ("gpu", "gpu", "npu" if at % 2 else "gpu")
        cards = [Card(f"{at}-{card}", kind, 10, 4 * GIB, kind) for card, kind in enumerate(kinds)]
        pool.join(f"node{at}", cards, 0)
    for number, (claim, _) in enumerate(claims):
        pool.acquire(f"app{number}", claim, 0)
    for number, (_, stays) in enumerate(claims):
        if not stays and f"app{number}" in pool.applications:
            pool.release(f"app{number}", 1)
    return pool


def lie(pool: Pool) -> list[object]:
    """Everything that a plan must leave as it is."""
    nodes = [(list(node.runs()), node.memory_bytes[:]) for node in pool.space.nodes if node]
    return [
        nodes,
        {one.name: one.runs for one in pool.applications.values()},
        dict(pool.space.free),
    ]


@settings(max_examples=200, deadline=None)
@given(POOLS)
def test_each_move_goes_lower_finds_its_blocks_free_and_splits_nothing(claims):
    pool = pool_with(claims)
    before = lie(pool)
    plan = pool.compact(every=True)
    assert lie(pool) == before
    for move in plan.moves:
        assert move.target < move.source
        assert len(move.target) <= len(move.source)
        assert pool.begin(move, 2)
        if move.moved_bytes:
            pool.moved(move.name, 3)


@settings(max_examples=200, deadline=None)
@given(POOLS)
def test_no_application_is_passed_over_that_could_go_lower(claims):
    """Placing every application, without comparing first, finds the same moves."""
    pool = pool_with(claims)
    plan = pool.compact(every=True)
    looked_at = compaction._may_go_lower
    compaction._may_go_lower = lambda *_: True
    try:
        assert pool.compact(every=True) == plan
    finally:
        compaction._may_go_lower = looked_at


@settings(max_examples=50, deadline=None)
@given(POOLS)
def test_partial_plans_one_after_another_end_with_a_plan_that_is_not(claims):
    pool = pool_with(claims)
    most, compaction.MOST_PLANNED = compaction.MOST_PLANNED, 2
    try:
        for _ in range(400):
            plan = pool.compact(every=True)
            assert len(plan.moves) <= 2
            for move in plan.moves:
                assert pool.begin(move, 2)
                if move.moved_bytes:
                    pool.moved(move.name, 3)
            if not plan.moves:
                break
        assert not plan.moves
        assert not plan.is_partial
    finally:
        compaction.MOST_PLANNED = most
