"""Draining a node on a real manager: orders, what is left there, and a kill in between."""

from __future__ import annotations

from tests.pool.support.manager_process import wait_until

from penstock_api.v1 import pool_pb2 as pb
from penstock_api.v1 import pool_pb2_grpc


def drain(manager, node, **fields):
    with manager.channel() as channel:
        request = pb.DrainRequest(node=node, **fields)
        return pool_pb2_grpc.PoolStub(channel).Drain(request, timeout=10).node


def test_a_draining_node_takes_nothing_new_also_after_the_manager_was_killed(manager, make_node):
    make_node(manager, "n0")
    make_node(manager, "n1")
    manager.acquire("a", 5)
    assert drain(manager, "n0").state == "draining"
    assert drain(manager, "n0").state == "draining"  # the same order twice
    shown = manager.state().applications[0]
    assert (shown.phase, "n0, which drains" in shown.reason) == ("running", True)
    manager.kill()
    manager.start()
    wait_until(lambda: [one.state for one in manager.state().nodes] == ["draining", "there"])
    assert manager.state().free_blocks == 20
    (run,) = manager.acquire("b", 5)[-1].application.runs
    assert (run.first, run.last) == (21, 25)
    error = manager.claim("c", 5, node="n0").ends()
    assert error.reason == "invalid"
    assert "n0 drains" in str(error)
    waits = manager.claim("w", 20, wait={"seconds": 60})
    wait_until(lambda: manager.phase("w") == "waiting")
    manager.release("a")
    assert manager.phase("w") == "waiting"
    assert drain(manager, "n0", stop=True).state == "there"
    assert waits.ends().application.runs[0].first == 1


def test_draining_at_once_ends_the_applications_of_that_node_alone(manager, make_node):
    make_node(manager, "n0")
    make_node(manager, "n1")
    manager.acquire("a", 15)
    manager.acquire("b", 15)
    drain(manager, "n0", now=True)
    wait_until(lambda: manager.phases() == {"b": "running"})
    assert ("released", "a") in manager.watched("a")


def test_a_node_that_is_not_there_and_contradictory_orders_are_refused(manager, make_node):
    make_node(manager, "n0")
    for fields, reason in (
        ({"node": "n9"}, "no-such-tenant"),
        ({"node": ""}, "no-such-tenant"),
        ({"node": "n0", "stop": True, "now": True}, "invalid"),
    ):
        assert manager.refused("Drain", pb.DrainRequest(**fields)).reason == reason
    assert [one.state for one in manager.state().nodes] == ["there"]


def test_why_says_what_would_help_a_claim_and_one_that_waits(manager, make_node):
    make_node(manager, "n0")
    manager.acquire("a", 15)
    with manager.channel() as channel:
        why = pool_pb2_grpc.PoolStub(channel).Why
        never = why(pb.WhyRequest(claim=pb.AcquireRequest(blocks=21)), timeout=10)
        claim = manager.claim("w", 10, wait={"seconds": 60})
        wait_until(lambda: manager.phase("w") == "waiting")
        waits = why(pb.WhyRequest(name="w"), timeout=10)
    claim.cancel()
    assert list(never.helps) == ["ask for at most 20 blocks", "let another node join the pool"]
    assert "5 are free" in waits.reason
    assert "a claim of 5 blocks would have room now" in waits.helps
