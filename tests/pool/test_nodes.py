"""Nodes of a real manager's pool: they join, go silent, come back, and lie."""

from __future__ import annotations

import time
from types import SimpleNamespace

from tests.pool.support.fake_node import card
from tests.pool.support.manager_process import blocks_of, wait_until
from tests.pool.support.relayed import relayed

from penstock.pool.holding import Holding
from penstock.pool.leases import Leases
from penstock.pool.nodes import NodeLink
from penstock_api.v1 import pool_pb2 as pb


def node_of(manager, name="n0"):
    return next((one for one in manager.state().nodes if one.name == name), None)


def test_nodes_get_ranges_in_the_order_in_which_they_join_and_keep_them_after_a_kill(
    manager, make_node
):
    make_node(manager, "n1", [card("x", 20), card("y", 10, "npu")])
    make_node(manager, "n0")
    for _ in range(2):
        wait_until(lambda: {one.state for one in manager.state().nodes} == {"there"})
        assert [(one.name, one.first, one.last) for one in manager.state().nodes] == [
            ("n1", 1, 30), ("n0", 31, 50),
        ]  # fmt: skip
        manager.kill()
        manager.start()


def test_a_node_that_is_back_within_its_time_goes_on_and_loses_nothing(manager, make_node):
    node = make_node(manager)
    manager.acquire("a", 5)
    node.connects = False
    node.break_off()
    wait_until(lambda: node_of(manager).state == "away")
    assert manager.phases() == {"a": "running"}
    node.connects = True
    wait_until(lambda: node_of(manager).state == "there")
    time.sleep(4)  # longer than a node may be silent
    assert manager.phases() == {"a": "running"}
    assert node.parts["a"].revision == 1


def test_a_node_that_cannot_be_reached_takes_nothing_new_until_it_is_back(make_manager, make_node):
    manager = make_manager("--node-timeout=60s")
    lost = make_node(manager, "n0")
    make_node(manager, "n1")
    lost.connects = False
    lost.break_off()
    wait_until(lambda: manager.state().free_blocks == 20)
    (run,) = manager.acquire("a", 5)[-1].application.runs
    assert run.first == 21
    refused = manager.claim("b", 5, node="n0").ends()
    assert refused.reason == "not-enough-left"
    assert "node n0, which is away" in str(refused)
    waits = manager.claim("c", 5, node="n0", wait={"seconds": 60})
    wait_until(lambda: manager.phase("c") == "waiting")
    lost.connects = True
    assert waits.ends().application.runs[0].first == 1
    assert manager.state().free_blocks == 30


def test_a_node_that_stays_silent_has_left_and_its_applications_are_lost_everywhere(
    manager, make_node
):
    dead = make_node(manager, "n0")
    other = make_node(manager, "n1")
    manager.acquire("both", 30, span=pb.SPAN_POOL)
    manager.acquire("other", 5)
    wait_until(lambda: other.newest("both") and other.newest("other"))
    dead.connects = False
    dead.break_off()
    wait_until(lambda: node_of(manager) is None)
    wait_until(lambda: manager.phase("both") == "")
    assert other.newest("both") is None
    assert manager.phase("other") == "running"
    assert ("lost", "both") in manager.watched("both")
    # Back again: what is left there is ended before its cards are free.
    dead.obeys = False
    dead.connects = True
    wait_until(lambda: "applications of before" in getattr(node_of(manager), "finding", ""))
    assert manager.state().blocks == 20
    dead.obey()
    wait_until(lambda: manager.state().blocks == 40)
    assert [one.first for one in manager.state().nodes if one.name == "n0"] == [41]


def test_a_holder_is_told_that_its_application_is_lost_while_it_starts(manager, make_node):
    node = make_node(manager)
    node.obeys = False
    claim = manager.claim("a", 5)
    wait_until(lambda: claim.phases)
    node.connects = False
    node.break_off()
    assert "has left the pool: it was silent" in str(claim.ends())


def test_a_node_with_other_cards_joins_anew_and_one_with_more_waits_until_it_is_idle(
    manager, make_node
):
    node = make_node(manager)
    manager.acquire("a", 5)
    node.cards = [card("n0-c0"), card("n0-c1")]
    wait_until(lambda: "when it is idle" in node_of(manager).finding)
    assert manager.phases() == {"a": "running"}
    manager.release("a")
    wait_until(lambda: manager.state().blocks == 40)
    manager.acquire("b", 5)
    node.cards = [card("n0-c9")]
    wait_until(lambda: manager.state().blocks == 20 and manager.phases() == {})
    assert [one.uuid for one in node_of(manager).cards] == ["n0-c9"]


def test_a_card_that_the_node_leaves_out_is_shown_with_the_reason_and_not_used(manager, make_node):
    other = card("n0-c1")
    other.left_out = "tenant x has a share of it"
    make_node(manager, cards=[card("n0-c0"), other])
    shown = node_of(manager)
    assert [(one.uuid, one.left_out) for one in shown.cards] == [
        ("n0-c0", ""), ("n0-c1", "tenant x has a share of it"),
    ]  # fmt: skip
    assert manager.state().blocks == 20


def test_reports_about_earlier_orders_and_of_orders_that_never_came_change_nothing(
    manager, make_node
):
    node = make_node(manager)
    manager.acquire("low", 15)
    node.obeys = False
    urgent = manager.claim("urgent", 20, priority=5)
    wait_until(lambda: node.newest("low").suspended)

    def lies(report):
        del report.parts[:]
        report.parts.add(application="low", revision=1, state="suspended")
        report.parts.add(application="low", revision=77, state="suspended")
        report.parts.add(application="never", revision=1, state="running")
        report.seen = 1 << 60
        return report

    node.changes_report = lies
    for _ in range(3):
        node.wake()
        time.sleep(0.2)
    assert manager.phases() == {"low": "suspending", "urgent": "starting"}
    node.changes_report = lambda report: report
    node.obey()
    assert urgent.ends().application.phase == "running"
    # Nor is one gone because a report of before its end does not name it.
    node.obeys = False
    manager.call("Release", pb.ReleaseRequest(name="urgent"), timeout=1)
    node.changes_report = lambda report: pb.NodeReport(node="n0", seen=1 << 60)
    node.wake()
    time.sleep(0.5)
    assert manager.phase("urgent") == "ending"


def test_a_node_of_another_pool_or_of_a_later_term_is_refused(manager, make_node):
    for name, pool, term in (("n0", "another", 0), ("n1", "", 99)):
        node = make_node(manager, name, joins=False)
        node.pool, node.term = pool, term
        node.break_off()
        wait_until(lambda node=node: "belongs to the pool" in node.refused
                   or "another manager leads" in node.refused)  # fmt: skip


def test_nonsense_in_reports_is_refused_and_the_pool_goes_on(manager, make_node):
    for at, cards in enumerate((
        [card("c", tflops=float("nan"))], [card("c", tflops=-1)], [card("c", tflops=1e12)],
        [card("c"), card("c")], [card("")], [card("c", kind="k" * 1000)], [card("c")] * 2000,
    )):  # fmt: skip
        node = make_node(manager, f"bad{at}", cards, joins=False)
        wait_until(lambda node=node: node.refused)
        node.close()
    make_node(manager, "good")
    assert manager.acquire("a", 20)
    assert set(blocks_of(manager.state()).values()) == {"a"}


def test_a_holder_on_a_node_that_has_ended_gives_its_blocks_back(manager, make_node):
    node = make_node(manager)
    claim = relayed(manager, node, "a", 5)
    node.alive = ["a"]
    assert claim.application.owner == "alice@n0"
    assert node.newest("a").uid == 1000
    time.sleep(4)  # longer than the lease
    assert manager.phase("a") == "running"
    node.alive = []
    wait_until(lambda: manager.phase("a") == "")
    assert ("released", "a") in manager.watched("a")


def test_a_claim_outlasts_the_restart_of_the_agent_through_which_it_waits():
    node = NodeLink("n0")
    one = Holding("a", "alice@n0", 1, 1, 5, holder_node="n0", state="waiting")
    leases = Leases(10**11)
    leases.attach("a")
    leases.detach("a", answered=False)
    leases.of("a").detached_ns = now_ns = time.monotonic_ns() - 4 * 10**9
    registry, nodes = SimpleNamespace(holdings={"a": one}), SimpleNamespace(known=lambda _: node)
    node.link, node.heard_ns, node.linked_ns = object(), time.monotonic_ns(), now_ns - 10**10
    assert [name.name for name, _ in leases.over(registry, nodes)] == ["a"]  # its caller is gone
    node.linked_ns = time.monotonic_ns() - 2 * 10**9  # the agent was started meanwhile
    assert list(leases.over(registry, nodes)) == []
    node.linked_ns = time.monotonic_ns() - 6 * 10**9
    leases.of("a").detached_ns = node.linked_ns - 1
    assert [name.name for name, _ in leases.over(registry, nodes)] == ["a"]


def test_the_holder_of_an_ended_application_says_nothing_about_the_next_of_its_name():
    node = NodeLink("n0")
    node.was_alive["a"] = time.monotonic_ns() - 10**10  # of the application before
    node.has_reported, node.link, node.heard_ns = True, object(), time.monotonic_ns()
    one = Holding("a", "alice@n0", 1, 1, 5, holder_node="n0", state="running")
    leases = Leases(10**11)
    leases.attach("a")
    leases.detach("a", answered=True)
    nodes = SimpleNamespace(known=lambda _: node)
    assert list(leases.over(SimpleNamespace(holdings={"a": one}), nodes)) == []
