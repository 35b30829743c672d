"""Managed tenant: iterations of the reconcile loop beside requests from other threads."""

from __future__ import annotations

import os
import threading
import time

import pytest

from penstock.node.admission.admit import Request, admit
from penstock.node.agent.managed_tenant import ManagedTenant
from penstock.node.agent.peer import Watched
from penstock.node.enforcement.process import find
from penstock.node.supervision.tenant_table import TenantTable
from penstock.node.tenants.simulated_machines import simulated_machine
from penstock.node.tenants.state import State


@pytest.fixture
def managed(tmp_path):
    state = State.open(tmp_path)
    source = simulated_machine(state, "h200")
    made = admit(state, Request(("x",), [2 << 30], [100], name="t"), source)
    tenant_table = TenantTable(state)
    tenant_table.sample(time.monotonic_ns())
    managed = ManagedTenant(
        made.tenant,
        made.tenant.grant(),
        made.lock,
        tenant_table,
        caller=Watched(find(os.getpid()), os.pidfd_open(os.getpid())),
    )
    yield managed
    managed.close()
    tenant_table.close()


def test_who_ends_a_tenant_waits_for_the_round_that_is_at_its_pages(managed, monkeypatch):
    """Otherwise the agent would write to an unmapped page, and crash."""
    is_at_it, may_go_on = threading.Event(), threading.Event()
    supervise = managed.supervisor.supervise

    def slowly(now_ns: int) -> None:
        is_at_it.set()
        assert may_go_on.wait(30)
        supervise(now_ns)

    monkeypatch.setattr(managed.supervisor, "supervise", slowly)
    in_a_round = threading.Thread(target=managed.supervise, args=[1])
    by_order = threading.Thread(target=managed.close)
    in_a_round.start()
    assert is_at_it.wait(30)
    by_order.start()
    by_order.join(0.3)
    assert by_order.is_alive()
    may_go_on.set()
    in_a_round.join(30)
    by_order.join(30)
    assert not by_order.is_alive()
    assert (managed.heartbeat_ns, managed.problem) == (1, None)


def test_a_round_that_comes_to_a_tenant_which_was_just_ended_leaves_it(managed):
    managed.supervise(1)
    managed.close()
    managed.supervise(2)
    assert (managed.heartbeat_ns, managed.problem) == (1, None)
    managed.close()  # as an agent that stops just then
