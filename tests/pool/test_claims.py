"""Claims on a real manager: granted, refused, waiting, withdrawn, resized, moved and released."""

from __future__ import annotations

import time

import grpc
import pytest
from tests.pool.support.fake_node import GIB, card
from tests.pool.support.manager_process import blocks_of, wait_until

from penstock_api.v1 import agent_pb2, pool_pb2_grpc
from penstock_api.v1 import pool_pb2 as pb

PROCESSES = agent_pb2.LIFETIME_PROCESSES


def runs_of(application):
    return [(run.first, run.last) for run in application.runs]


def test_a_claim_is_answered_once_its_node_reports_that_it_runs(manager, make_node):
    node = make_node(manager)
    node.obeys = False
    claim = manager.claim("a", 5)
    wait_until(lambda: claim.phases == ["starting"])
    part = wait_until(lambda: node.newest("a"))
    assert [(share.device_uuid, share.memory_bytes, share.cores_permille)
            for share in part.shares] == [("n0-c0", 4 * GIB, 250)]  # fmt: skip
    node.obey()
    last = claim.ends().application
    assert (last.phase, runs_of(last), last.owner.split("@")[0]) == ("running", [(1, 5)], "root")


def test_the_same_request_is_answered_about_the_same_application_also_after_a_kill(
    manager, make_node
):
    make_node(manager)
    first = manager.acquire("a", 5, request_id="r1")
    assert manager.acquire("a", 5, request_id="r1")[-1].application.runs == (
        first[-1].application.runs
    )
    manager.kill()
    manager.start()
    assert manager.acquire("", 5, request_id="r1")[-1].application.name == "a"
    assert set(blocks_of(manager.state()).values()) == {"a"}


def test_a_name_that_is_taken_and_a_claim_that_does_not_fit_are_refused(manager, make_node):
    make_node(manager)
    manager.acquire("a", 15)
    for name, blocks, reason, why in (
        ("a", 1, "exists", "running"),
        ("b", 6, "not-enough-left", "5 are free"),
        ("b", 21, "invalid", "ask for at most 20 blocks"),
        ("../b", 1, "invalid", "letters, digits"),
        ("b", 0, "invalid", "1 to"),
    ):
        error = manager.claim(name, blocks).ends()
        assert error.reason == reason
        assert why in str(error)
    assert manager.phases() == {"a": "running"}


def test_one_that_waits_is_served_when_blocks_are_free_and_refused_when_its_time_is_over(
    manager, make_node
):
    make_node(manager)
    manager.acquire("a", 15)
    late = manager.claim("late", 10, wait={"nanos": 500_000_000})
    waits = manager.claim("waits", 10, wait={"seconds": 60})
    error = late.ends()
    assert error.reason == "timed-out"
    assert "5 are free" in str(error)
    shown = next(one for one in manager.state().applications if one.name == "waits")
    assert (shown.phase, shown.place) == ("waiting", 1)
    assert "it asks for 10 blocks; 5 are free" in shown.reason
    manager.release("a")
    assert waits.ends().application.phase == "running"


def test_a_claim_whose_caller_goes_away_is_withdrawn(manager, make_node):
    make_node(manager)
    manager.acquire("a", 15)
    waits = manager.claim("waits", 10, wait={"seconds": 60}, request_id="w")
    twice = manager.claim("waits", 10, wait={"seconds": 60}, request_id="w")
    wait_until(lambda: waits.phases and twice.phases)
    waits.cancel()
    time.sleep(2)
    assert manager.phase("waits") == "waiting"  # the other stream still waits for it
    twice.cancel()
    wait_until(lambda: manager.phase("waits") == "")
    assert ("withdrawn", "waits") in manager.watched("waits")


def test_a_claim_of_before_a_kill_goes_on_if_its_caller_comes_back(manager, make_node):
    make_node(manager)
    manager.acquire("a", 15)
    back = manager.claim("back", 10, wait={"seconds": 60}, request_id="b")
    gone = manager.claim("gone", 10, wait={"seconds": 60}, request_id="g")
    wait_until(lambda: back.phases and gone.phases)
    manager.kill()
    manager.start()
    again = manager.claim("back", 10, wait={"seconds": 60}, request_id="b")
    wait_until(lambda: manager.phases() == {"a": "running", "back": "waiting"})
    manager.release("a")
    assert again.ends().application.phase == "running"


def test_a_part_that_cannot_start_ends_the_application_with_its_reason(manager, make_node):
    node = make_node(manager)
    node.says["a", "running"] = "failed"
    error = manager.claim("a", 5).ends()
    assert "node n0: as the test says" in str(error)
    state = manager.state()
    assert (list(state.applications), state.free_blocks) == ([], 20)


def test_urgent_work_gets_its_blocks_once_the_others_have_reported_that_they_suspended(
    manager, make_node
):
    node = make_node(manager)
    manager.acquire("low", 15)
    node.obeys = False
    urgent = manager.claim("urgent", 20, priority=5)
    wait_until(lambda: node.newest("low") and node.newest("low").suspended)
    assert node.newest("urgent") is None
    assert manager.phases() == {"low": "suspending", "urgent": "starting"}
    node.obey()
    assert runs_of(urgent.ends().application) == [(1, 20)]
    assert manager.phases() == {"low": "suspended", "urgent": "running"}
    manager.release("urgent")
    wait_until(lambda: manager.phases() == {"low": "running"})
    low = manager.state().applications[0]
    assert (low.suspensions, runs_of(low)) == (1, [(1, 15)])
    assert low.suspended_for.ToNanoseconds() > 0


def test_who_cannot_be_suspended_goes_on_and_the_claim_is_decided_anew(manager, make_node):
    node = make_node(manager)
    manager.acquire("low", 15)
    node.says["low", "suspended"] = "failed"
    error = manager.claim("urgent", 20, priority=5).ends()
    assert "5 are free" in str(error)
    assert manager.phases() == {"low": "running"}
    assert runs_of(manager.state().applications[0]) == [(1, 15)]


def test_blocks_of_what_was_released_are_free_once_its_nodes_report_it_gone(manager, make_node):
    node = make_node(manager)
    manager.acquire("a", 15)
    node.obeys = False
    manager.call("Release", pb.ReleaseRequest(name="a"), timeout=1)
    assert manager.phase("a") == "ending"
    assert manager.claim("b", 10).ends().reason == "not-enough-left"
    manager.kill()
    manager.start()
    assert manager.claim("b", 10).ends().reason == "not-enough-left"
    node.obey()
    wait_until(lambda: manager.phases() == {})
    assert manager.acquire("b", 20)
    manager.release("a")  # once more
    assert manager.refused("Release", pb.ReleaseRequest(name="never")).reason == "no-such-tenant"


def test_a_suspended_application_that_is_released_is_not_resumed(manager, make_node):
    node = make_node(manager)
    manager.acquire("low", 15)
    manager.acquire("urgent", 20, priority=5)
    node.obeys = False
    manager.call("Release", pb.ReleaseRequest(name="low"), timeout=1)
    assert manager.phase("low") == "ending"
    node.obey()
    wait_until(lambda: manager.phases() == {"urgent": "running"})
    manager.release("urgent")
    assert manager.state().free_blocks == 20


def test_a_resize_is_answered_when_the_node_has_it_and_others_get_only_what_was_given_back(
    manager, make_node
):
    node = make_node(manager)
    manager.acquire("a", 15)

    def resize(blocks, timeout=15):
        request = pb.ResizeApplicationRequest(name="a", blocks=blocks)
        return runs_of(manager.call("ResizeApplication", request, timeout).application)

    assert resize(18) == [(1, 18)]
    error = manager.refused("ResizeApplication", pb.ResizeApplicationRequest(name="a", blocks=30))
    assert error.reason == "not-enough-left"
    node.obeys = False
    waits = manager.claim("waits", 12, wait={"seconds": 60})
    with pytest.raises(grpc.RpcError):
        resize(8, timeout=0.5)
    assert manager.phase("waits") == "waiting"  # the node has not taken anything back yet
    node.obey()
    assert runs_of(waits.ends().application) == [(9, 20)]
    node.says["a", "running"] = "failed"
    error = manager.refused("ResizeApplication", pb.ResizeApplicationRequest(name="a", blocks=4))
    assert "as the test says" in str(error)
    assert len(blocks_of(manager.state())) == 20


def test_a_holder_elsewhere_keeps_its_claim_by_keep_alive_alone(manager, make_node):
    make_node(manager)
    answers = manager.acquire("kept", 5, lifetime=PROCESSES)
    assert answers[-1].lease.seconds == 2
    manager.acquire("dropped", 5, lifetime=PROCESSES)
    manager.acquire("stays", 5)
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        said = manager.call("KeepAlive", pb.KeepAliveRequest(names=["kept", "nobody"]))
        assert list(said.unknown) == ["nobody"]
        time.sleep(0.3)
    assert manager.phases() == {"kept": "running", "stays": "running"}
    wait_until(lambda: manager.phases() == {"stays": "running"})


def test_compaction_says_what_moves_cost_and_moves_only_what_the_node_can(manager, make_node):
    node = make_node(manager, cards=[card("c0", 10), card("c1", 10)])
    for name, blocks in (("a", 6), ("b", 4), ("c", 2)):
        manager.acquire(name, blocks)
    manager.release("a")
    with manager.channel() as channel:
        compact = pool_pb2_grpc.PoolStub(channel).Compact
        plan = list(compact(pb.CompactRequest(full=True, dry_run=True), timeout=10))
        assert len(plan) == 1
        assert plan[0].plan
        assert blocks_of(manager.state())[7]  # nothing has moved
        node.says["c", "suspended"] = "failed"
        done = [one.done for one in compact(pb.CompactRequest(full=True), timeout=20)][1:]
    assert [one.application for one in done] == [one.application for one in plan[0].plan]
    for one in done:
        expected = one.source if one.failure else one.target
        shown = next(x for x in manager.state().applications if x.name == one.application)
        assert (shown.phase, runs_of(shown)) == ("running", [(r.first, r.last) for r in expected])
    blocks_of(manager.state())


def test_compaction_keeps_applications_on_their_nodes_and_names_those_that_cannot_move_now(
    manager, make_node
):
    node = make_node(manager, cards=[card("c0", 10)])
    make_node(manager, "n1", cards=[card("c1", 10)])
    for name, blocks in (("a", 6), ("b", 4), ("far", 6)):
        manager.acquire(name, blocks)
    manager.release("a")
    node.obeys = False
    with pytest.raises(grpc.RpcError):
        manager.call("ResizeApplication", pb.ResizeApplicationRequest(name="b", blocks=2), 1)
    with manager.channel() as channel:
        compact = pool_pb2_grpc.PoolStub(channel).Compact
        (told,) = compact(pb.CompactRequest(full=True, dry_run=True), timeout=10)
    assert list(told.plan) == []  # blocks 1 to 6 would do for `far`, but are on another node
    (move,) = told.left_out
    assert (move.application, "is being resized" in move.failure) == ("b", True)


def test_compaction_moves_a_virtual_card_to_another_node(manager, make_node):
    make_node(manager, cards=[card("c0", 10)])
    make_node(manager, "n1", cards=[card("c1", 10)])
    manager.acquire("a", 10)
    manager.acquire("spread", 6, span=pb.SPAN_POOL)
    manager.release("a")
    with manager.channel() as channel:
        compact = pool_pb2_grpc.PoolStub(channel).Compact
        told = list(compact(pb.CompactRequest(full=True), timeout=20))
    assert list(told[0].left_out) == []
    assert [(one.done.application, one.done.failure) for one in told[1:]] == [("spread", "")]
    (shown,) = manager.state().applications
    assert (shown.phase, runs_of(shown)) == ("running", [(1, 6)])


def test_a_virtual_card_has_a_minute_to_leave_a_node_on_which_it_loses_all(manager, make_node):
    make_node(manager, cards=[card("c0", 10)])
    other = make_node(manager, "n1", cards=[card("c1", 10)])
    manager.acquire("spread", 15, span=pb.SPAN_POOL)
    assert other.newest("spread")
    other.obeys = False
    manager.call("ResizeApplication", pb.ResizeApplicationRequest(name="spread", blocks=5))
    wait_until(lambda: not other.newest("spread"))
    assert [(one.application, one.grace.seconds) for one in other.orders[-1].ends] == [
        ("spread", 60)
    ]
    assert manager.watched("spread")[-2:] == [("resizing", "spread"), ("resized", "spread")]
    other.obey()
    manager.release("spread")
    wait_until(lambda: manager.phases() == {})


def test_a_release_ends_only_the_application_that_is_meant(manager, make_node):
    make_node(manager)
    first = manager.acquire("a", 5)[-1].application
    manager.release("a")
    second = manager.acquire("a", 5)[-1].application
    assert second.claimed.ToNanoseconds() > first.claimed.ToNanoseconds()
    manager.call("Release", pb.ReleaseRequest(name="a", claimed=first.claimed))
    assert manager.phase("a") == "running"
    manager.call("Release", pb.ReleaseRequest(name="a", claimed=second.claimed))
    assert manager.phase("a") == ""


def test_the_grace_of_a_release_goes_to_the_nodes_and_outlasts_a_kill(manager, make_node):
    node = make_node(manager)
    node.obeys = False
    manager.claim("a", 5)
    wait_until(lambda: node.newest("a"))
    assert node.newest("a").claimed.ToNanoseconds() > 0
    release = pb.ReleaseRequest(name="a")
    release.grace.FromSeconds(7)

    def graces():
        return {one.application: one.grace.seconds for one in node.orders[-1].ends}

    manager.call("Release", release, timeout=1)  # the node does not carry it out
    wait_until(lambda: graces() == {"a": 7})
    release.grace.FromSeconds(90)  # the shortest applies
    manager.call("Release", release, timeout=1)  # the node does not carry it out
    manager.kill()
    orders = len(node.orders)
    manager.start()
    wait_until(lambda: len(node.orders) > orders and graces() == {"a": 7})
    node.obey()
    wait_until(lambda: manager.phases() == {})
    release.grace.FromSeconds(-1)
    assert "grace" in manager.refused("Release", release).what
