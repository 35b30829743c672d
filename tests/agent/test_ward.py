"""A tenant that the agent looks after in its rounds, while orders come from other threads."""

from __future__ import annotations

import os
import threading
import time

import pytest

from penstock.node.admission.admit import Request, admit
from penstock.node.agent.managed_tenant import Ward
from penstock.node.agent.peer import Watched
from penstock.node.enforcement.process import find
from penstock.node.supervision.tenant_table import Neighbourhood
from penstock.node.tenants.simulated_machines import simulated_machine
from penstock.node.tenants.state import State


@pytest.fixture
def ward(tmp_path):
    state = State.open(tmp_path)
    source = simulated_machine(state, "h200")
    made = admit(state, Request(("x",), [2 << 30], [100], name="t"), source)
    neighbourhood = Neighbourhood(state)
    neighbourhood.look(time.monotonic_ns())
    ward = Ward(
        made.tenant,
        made.tenant.grant(),
        made.lock,
        neighbourhood,
        caller=Watched(find(os.getpid()), os.pidfd_open(os.getpid())),
    )
    yield ward
    ward.close()
    neighbourhood.close()


def test_who_ends_a_tenant_waits_for_the_round_that_is_at_its_pages(ward, monkeypatch):
    """Else the agent wrote to a page that was not mapped any more, and ended."""
    is_at_it, may_go_on = threading.Event(), threading.Event()
    look_after = ward.supervisor.look_after

    def slowly(now_ns: int) -> None:
        is_at_it.set()
        assert may_go_on.wait(30)
        look_after(now_ns)

    monkeypatch.setattr(ward.supervisor, "look_after", slowly)
    in_a_round = threading.Thread(target=ward.look_after, args=[1])
    by_order = threading.Thread(target=ward.close)
    in_a_round.start()
    assert is_at_it.wait(30)
    by_order.start()
    by_order.join(0.3)
    assert by_order.is_alive()
    may_go_on.set()
    in_a_round.join(30)
    by_order.join(30)
    assert not by_order.is_alive()
    assert (ward.looked_after_ns, ward.problem) == (1, None)


def test_a_round_that_comes_to_a_tenant_which_was_just_ended_leaves_it(ward):
    ward.look_after(1)
    ward.close()
    ward.look_after(2)
    assert (ward.looked_after_ns, ward.problem) == (1, None)
    ward.close()  # as an agent that stops just then
