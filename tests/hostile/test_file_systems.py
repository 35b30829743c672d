"""File systems of a user's that never answer hold nobody up but that user."""

from __future__ import annotations

import os

import pytest
from tests.agent.conftest import wait_until
from tests.agent.programs import backlogged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")


@pytest.fixture
def dead_run(make_node, hostile, fuse):
    """Starts a process whose /run never answers a lookup. It ends before the nodes do."""

    def start() -> None:
        program = hostile("never_answers.py", *fuse)
        if program.stdout.readline() != "ready\n":
            pytest.skip("a user cannot mount overlayfs over FUSE here")

    return start


def test_a_users_run_that_never_answers_holds_up_neither_rounds_nor_orders(make_node, dead_run):
    """Before, the rounds hung in the first look at it, and SIGKILL did not end the agent."""
    node = make_node()
    granted = node.tenant("good", cores=300)
    node.launch(granted, *backlogged(60))
    wait_until(lambda: node.usage("good").devices[0].launches > 500)
    dead_run()
    node.launch(granted, *backlogged(60))
    with node.client() as agent:
        # Whoever counts this one has looked at the user's process, which was there before it.
        wait_until(lambda: agent.tenants()[0].members == 2)
        assert agent.node().slowest_round.ToNanoseconds() < 1e9
        agent.suspend("good")
        agent.revoke("good", 0)
    node.process.kill()
    assert node.process.wait(10) == -9
    node.process.stderr.close()
    node.start()
    assert node.stop() == 0
