"""Many processes of a user with many mounts each delay nobody but that user."""

from __future__ import annotations

import os
import time

import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.programs import environment_for

pytestmark = [
    pytest.mark.timed,
    pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user"),
]


def test_many_mounts_where_a_containers_page_lies_hold_up_neither_rounds_nor_orders(
    make_node, hostile
):
    """Once, the agent read them all for each process: iterations took 30 s, and no revoke ended."""
    node = make_node()
    granted = node.tenant("t", cores=300)
    program = hostile("many_mounts.py", 2000, 1000)
    assert program.stdout.readline() == "ready\n"
    node.launch_in(environment_for(granted), "sleep", "600")
    with node.client() as agent:
        # Once this one is counted, the others, which are older, were examined too.
        wait_until(lambda: agent.tenants()[0].members == 1)
        assert agent.node().slowest_round.ToNanoseconds() < 3e9
        began_s = time.monotonic()
        agent.revoke("t", 0)
        assert time.monotonic() - began_s < 8
