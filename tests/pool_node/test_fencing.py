"""Fencing: a manager that was replaced, or another pool's, changes nothing."""

from __future__ import annotations

import json

import pytest
from tests.agent.conftest import wait_until
from tests.pool_node.support.manager import GIB, Manager


def record(member):
    return json.loads((member.state / "pool.json").read_text())


def test_the_term_is_on_disk_before_orders_of_it_are_carried_out(member, manager, shares):
    manager.term = 7
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    assert (record(member)["pool"], record(member)["term"]) == ("pool-1", 7)


def test_orders_of_a_lower_term_change_nothing_even_after_a_kill(member, manager, shares):
    manager.term = 7
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    for kill in (False, True):
        if kill:
            member.kill()
            member.start()
        manager.term = 6
        joins = manager.joins
        manager.end("app1")
        wait_until(
            lambda joins=joins: manager.joins > joins + 1
        )  # it dials again, and refuses again
        assert list(member.tenants()) == ["app1"]
        refused = [*member.logged("pool lost"), *member.logged("pool not joined")]
        assert any("term 6 were refused" in one["reason"] for one in refused)
        manager.term = 8
        manager.want("app1", shares((0, 8, 300)))
        manager.wait_for("app1", "running")


def test_orders_of_another_pool_are_refused_and_the_log_says_how_to_move_the_node(
    member, manager, shares
):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    joins = manager.joins
    manager.send(manager.orders(pool="pool-2", parts=[]))
    wait_until(lambda: manager.joins > joins)
    assert list(member.tenants()) == ["app1"]
    (lost,) = member.logged("pool lost")
    assert "pool-2" in lost["reason"]
    assert "penstock agent leave-pool" in lost["reason"]


def test_a_node_moves_to_another_pool_once_it_has_left_the_first(member, manager, shares, tmp_path):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    assert "an agent is running" in member("agent", "leave-pool").stderr
    member.stop()
    refused = member("agent", "leave-pool")
    assert refused.returncode == 2
    assert "app1" in refused.stderr
    member.start()
    manager.end("app1")
    manager.wait_for("app1", None)
    member.stop()
    left = member("agent", "leave-pool")
    assert left.returncode == 0, left.stderr
    assert "pool-1" in left.stderr + left.stdout
    manager.pool, manager.term = "pool-2", 1
    member.start()
    manager.want("app2", shares((0, 8, 300)))
    manager.wait_for("app2", "running")
    assert record(member)["pool"] == "pool-2"


def test_a_refused_node_says_why_and_keeps_its_tenants(member, manager, shares):
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    manager.refusal = "another node has this name"
    joins = manager.joins
    manager.send(manager.orders(refused=True, reason=manager.refusal, parts=[]))
    wait_until(lambda: manager.joins > joins)
    assert list(member.tenants()) == ["app1"]
    assert "another node has this name" in member.logged("pool lost")[0]["reason"]
    manager.refusal = ""
    manager.want("app2", shares((0, 8, 300)))
    manager.wait_for("app2", "running")


def test_an_agent_finds_the_manager_that_leads_among_several(make_member, manager, tmp_path):
    second = Manager(tmp_path / "second.sock")
    member = make_member(f"--pool={second.socket},{manager.socket}")
    manager.wait_joined()
    manager.wait(lambda: manager.report.term == 1)
    second.term = 2
    second.start()
    manager.stop()
    try:
        second.wait_joined()
        second.want("app1", [(member.devices()[0].uuid, GIB, 100)])
        second.wait_for("app1", "running")
    finally:
        second.stop()


@pytest.mark.parametrize("content", ["", "{", '{"pool": 1}', "[]", '{"pool": "p", "term": "x"}'])
def test_an_agent_with_a_damaged_record_does_not_start(make_member, content):
    member = make_member(start=False)
    member.state.mkdir(mode=0o700)
    (member.state / "pool.json").write_text(content)
    done = member(*member.agent_command())
    assert done.returncode == 2
    assert "pool.json cannot be used" in done.stderr
