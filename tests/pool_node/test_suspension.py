"""Suspension of a pool's applications: their memory leaves the device, and comes back."""

from __future__ import annotations

import pytest
from tests.pool_node.conftest import shares_of
from tests.pool_node.support.programs import start


@pytest.fixture
def busy(member, manager, shares):
    """An application whose program launches without a pause."""
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    program = start(member, "app1")
    manager.wait(lambda: manager.part("app1").device_bytes > 0)
    return program


def test_a_suspended_application_gives_its_memory_and_its_share_to_another(
    member, manager, shares, busy
):
    held = manager.part("app1").device_bytes
    order = manager.want("app1", suspended=True, send=False)
    manager.want("urgent", shares((0, 100, 1000)))  # there is room for it only then
    part = manager.wait_for("app1", "suspended", 60)
    assert part.revision == order.revision
    assert part.host_bytes >= held
    assert part.took.ToNanoseconds() > 0
    manager.wait_for("urgent", "running", 60)
    manager.want("app1", suspended=False)
    pending = manager.wait_for("app1", "resuming", 60)
    manager.wait(lambda: "not enough left" in manager.part("app1").reason)
    assert pending.revision
    manager.end("urgent")
    part = manager.wait_for("app1", "running", 60)
    assert part.host_bytes == 0
    launches = member.usage("app1").devices[0].launches
    manager.wait(lambda: member.usage("app1").devices[0].launches > launches)
    assert busy.poll() is None


def test_an_application_that_is_ended_while_it_is_suspended_is_gone(manager, busy):
    manager.want("app1", suspended=True)
    manager.wait_for("app1", "suspended", 60)
    manager.end("app1")
    manager.wait_for("app1", None, 60)
    assert busy.wait(20) != 0


def test_orders_that_change_while_memory_moves_end_in_the_last_one(manager, busy):
    for _ in range(5):
        manager.want("app1", suspended=True)
        manager.want("app1", suspended=False)
    manager.wait_for("app1", "running", 60)
    manager.wait(lambda: manager.part("app1").revision == manager.revision)
    assert busy.poll() is None


def test_a_suspended_application_whose_tenant_is_gone_has_failed(manager, member, shares):
    manager.want("app1", shares((0, 8, 300)), suspended=True)
    assert "not on this node any more" in manager.wait_for("app1", "failed").reason
    assert member.tenants() == {}


def test_an_application_that_cannot_be_suspended_has_failed_and_goes_on(make_member, manager):
    member = make_member("--host-memory=1Mi")
    manager.wait_joined()
    shares = shares_of(member)
    manager.want("app1", shares((0, 8, 300)))
    manager.wait_for("app1", "running")
    program = start(member, "app1")
    manager.wait(lambda: manager.part("app1").device_bytes > 0)
    order = manager.want("app1", suspended=True)
    part = manager.wait_for("app1", "failed", 60)
    assert part.revision == order.revision
    assert "--host-memory" in part.reason
    manager.want("app1", suspended=False)  # as the manager does when it chooses another victim
    manager.wait_for("app1", "running", 60)
    launches = member.usage("app1").devices[0].launches
    manager.wait(lambda: member.usage("app1").devices[0].launches > launches)
    assert program.poll() is None
