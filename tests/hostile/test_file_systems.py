"""Hanging file systems of a user delay nobody but that user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.agent.conftest import request, wait_until
from tests.agent.support.programs import backlogged, environment_for

from penstock.model import PenstockError

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")


@pytest.fixture
def dead_run(make_node, hostile, fuse):
    """Starts a process whose /run never answers a lookup. It ends before the nodes do."""

    def start() -> subprocess.Popen[str]:
        program = hostile("unanswered_lookups.py", *fuse)
        if program.stdout.readline() != "ready\n":
            pytest.skip("a user cannot mount overlayfs over FUSE here")
        return program

    return start


def test_a_users_run_that_never_answers_holds_up_neither_rounds_nor_orders(make_node, dead_run):
    """Once, the first access to it hung the reconcile loop, and SIGKILL did not end the agent."""
    node = make_node()
    granted = node.tenant("good", cores=300)
    node.launch(granted, *backlogged(60))
    wait_until(lambda: node.usage("good").devices[0].launches > 500)
    dead_run()
    node.launch(granted, *backlogged(60))
    with node.client() as agent:
        # Once this one is counted, the user's process, which is older, was examined too.
        wait_until(lambda: agent.tenants()[0].members == 2)
        assert agent.node().slowest_round.ToNanoseconds() < 1e9
        agent.suspend("good")
        agent.revoke("good", 0)
    node.process.kill()
    assert node.process.wait(10) == -9
    node.process.stderr.close()
    node.start()
    assert node.stop() == 0


def test_a_tenant_keeps_its_share_as_long_as_a_process_of_it_survives_sigkill(make_node, dead_run):
    """Once, it was released after ten seconds, but what such a process holds is not free."""
    node = make_node()
    granted = node.tenant("stuck", cores=900, request_id="claim")
    culprit = dead_run()
    environment = environment_for(granted)
    environment.pop("LD_PRELOAD", None)
    enter = ["nsenter", f"--mount=/proc/{culprit.pid}/ns/mnt"]
    program = node.launch_in(environment, *enter, "stat", "/run/x")
    waits_in = Path(f"/proc/{program.pid}/wchan")
    wait_until(lambda: waits_in.read_text() == "request_wait_answer")  # and, once killed, for good
    with node.client() as agent:
        with pytest.raises(PenstockError, match=f"pid {program.pid} is still there") as failed:
            agent.revoke("stuck", 0)
        assert failed.value.reason == "not-now"
        assert agent.node().devices[0].free_cores_permille == 100
        assert "survive SIGKILL" in agent.tenants()[0].finding
        for again in ("claim", "another"):
            with pytest.raises(PenstockError, match="is being ended"):
                agent.grant(request("stuck", request_id=again))
        culprit.kill()
        assert program.wait(10) < 0
        wait_until(lambda: agent.tenants() == [])
        assert agent.node().devices[0].free_cores_permille == 1000
