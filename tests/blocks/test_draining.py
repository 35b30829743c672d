"""Nodes that drain or are away take nothing new; what is there may stay, shrink and end."""

from __future__ import annotations

import pytest

from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool
from penstock.scheduling.blocks.run import Run

GIB = 1 << 30


def two_nodes() -> Pool:
    pool = Pool()
    for name in ("n0", "n1"):
        pool.join(name, [Card(f"{name}-card", "gpu", 10, 10 * GIB, frees_memory=True)], 0)
    return pool


def test_nothing_new_is_placed_on_a_draining_node_until_the_draining_is_stopped():
    pool = two_nodes()
    pool.close(["n0"], "drains", 1)
    assert (pool.space.free[""], pool.space.longest()) == (10, 10)
    assert pool.acquire("a", Claim(4, span="node"), 2).actions[0].runs == (Run(11, 14),)
    refused = pool.acquire("b", Claim(4, span="node", node="n0"), 3)
    assert (refused.outcome, "node n0 drains" in refused.reason) == ("refused", True)
    assert pool.acquire("c", Claim(7, span="node"), 4, wait=True).outcome == "waiting"
    assert [one.name for one in pool.open(["n0"], "drains", 5)] == ["c"]
    assert pool.applications["c"].runs == (Run(1, 7),)


def test_what_is_on_a_draining_node_shrinks_and_does_not_grow():
    pool = two_nodes()
    pool.acquire("a", Claim(4, span="node"), 0)
    pool.close(["n0"], "drains", 1)
    with pytest.raises(ValueError, match="n0, which drains"):
        pool.resize("a", 5, 2)
    assert pool.resize("a", 3, 3)[0] == (Run(1, 3),)
    assert pool.space.free[""] == 10
    pool.release("a", 4)
    assert pool.acquire("b", Claim(1, span="node"), 5).actions[0].runs == (Run(11, 11),)


def test_applications_of_a_draining_node_are_no_victims_since_their_blocks_would_help_nobody():
    pool = two_nodes()
    pool.acquire("old", Claim(10, span="node"), 0)
    pool.close(["n0"], "drains", 1)
    pool.acquire("new", Claim(10, span="node"), 2)
    urgent = pool.acquire("urgent", Claim(5, priority=1, span="node"), 3)
    assert [one.name for one in urgent.actions] == ["new"]


def test_a_suspended_application_of_a_draining_node_is_resumed_when_the_draining_is_stopped():
    pool = two_nodes()
    pool.acquire("old", Claim(10, span="node", node="n0"), 0)
    pool.acquire("urgent", Claim(10, priority=1, span="node", node="n0"), 1)
    pool.suspended("old", 2)
    pool.close(["n0"], "drains", 3)
    assert pool.release("urgent", 4) == []
    assert "n0, which drains" in pool.held_back(pool.applications["old"])
    assert [one.what for one in pool.open(["n0"], "drains", 5)] == ["resume"]


def test_a_node_that_is_away_takes_nothing_new_and_is_not_given_up_for_what_waits():
    pool = two_nodes()
    pool.close(["n0"], "is away", 1)
    assert pool.acquire("a", Claim(4, span="node"), 2).actions[0].runs == (Run(11, 14),)
    refused = pool.acquire("b", Claim(4, span="node", node="n0"), 3)
    assert (refused.outcome, refused.is_never) == ("refused", False)
    assert "n0, which is away" in refused.reason
    crowded = pool.acquire("c", Claim(7, span="node"), 4)
    assert (crowded.outcome, crowded.is_never) == ("refused", False)
    assert "without 1 node that cannot be reached" in crowded.reason
    assert pool.acquire("d", Claim(7, span="node"), 5, wait=True).outcome == "waiting"
    assert [one.name for one in pool.open(["n0"], "is away", 6)] == ["d"]


def test_a_node_that_drains_and_is_away_takes_new_work_once_it_does_neither():
    pool = two_nodes()
    pool.close(["n0"], "drains", 1)
    pool.close(["n0"], "is away", 2)
    pool.open(["n0"], "drains", 3)
    assert pool.space.free[""] == 10
    pool.open(["n0"], "is away", 4)
    assert pool.space.free[""] == 20
