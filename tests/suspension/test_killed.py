"""Deaths in the middle of a release or a restore: of the agent, its helper, and the program."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.suspension.conftest import (
    free_of,
    released,
    resume,
    settled,
    suspend,
    tenant_of,
    used,
)

from penstock.model import PenstockError

KILLS = int(os.environ.get("PENSTOCK_NODE_KILLS", "10"))
HELPER = b"penstock.node.checkpoint.helper"
STATES = ["releasing", "released", "restoring"]


def helpers_of(node) -> list[int]:
    """Pids of the agent's checkpoint helpers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends just now
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if HELPER in command and parent == node.process.pid:
                found.append(int(folder.name))
    return found


def test_an_agent_that_is_killed_at_any_moment_goes_on_when_it_returns(node, work):
    granted = node.tenant("t")
    undisturbed = work(node, granted, 40 * KILLS, 8, "fork").result()
    worker = work(node, granted, 40 * KILLS, 8, "fork")
    chance = random.Random(20)  # noqa: S311 - not secret
    wanted = ""
    for _ in range(KILLS):
        wanted = "released" if wanted == "" else ""
        if wanted:
            suspend(node, "t")
        else:
            resume(node, "t")
        time.sleep(chance.random() * 0.4)
        node.kill()
        node.start()
        if chance.random() < 0.5:
            settled(node, "t", wanted)
    if wanted:
        settled(node, "t", "released")
        assert used(node) < 1 << 20
        resume(node, "t")
    settled(node, "t", "")
    assert worker.result() == undisturbed


@pytest.mark.parametrize("step", ["release", "restore"])
def test_a_helper_that_is_killed_is_started_again_and_the_operation_goes_on(node, work, step):
    granted = node.tenant("t")
    undisturbed = work(node, granted, 200, 16, "fork").result()
    worker = work(node, granted, 200, 16, "fork")
    released(node, "t")
    if step == "release":
        resume(node, "t")
        settled(node, "t", "")
        suspend(node, "t")
    else:
        resume(node, "t")
    for _ in range(3):
        for pid in helpers_of(node):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    settled(node, "t", "released" if step == "release" else "")
    if step == "release":
        resume(node, "t")
        settled(node, "t", "")
    assert worker.result() == undisturbed


def test_a_helper_that_hangs_does_not_hold_up_the_agent(node, work):
    granted = node.tenant("t")
    worker = work(node, granted, 200, 16)
    released(node, "t")
    (helper,) = helpers_of(node)
    os.kill(helper, signal.SIGSTOP)
    began_s = time.monotonic()
    resume(node, "t")
    node.tenant("u", cores=100)
    assert tenant_of(node, "t").suspension == "restoring"
    assert time.monotonic() - began_s < 10
    with node.client() as agent:
        agent.revoke("u", 0)
    os.kill(helper, signal.SIGCONT)
    settled(node, "t", "")
    worker.result()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("end", ["kill", "revoke"])
def test_a_tenant_may_end_in_every_state(node, work, state, end):
    granted = node.tenant("t")
    worker = work(node, granted, 2000, 48, "fork")
    suspend(node, "t")
    if state != "releasing":
        settled(node, "t", "released")
    if state == "restoring":
        resume(node, "t")
    time.sleep(random.random() * 0.1)  # noqa: S311 - not secret
    if end == "kill":
        for slot in node.usage("t").slots:
            os.kill(slot.pid, signal.SIGKILL)
        wait_until(lambda: used(node) == 0)
        settled(node, "t", "" if state == "restoring" else "released")
    else:
        with node.client() as agent:
            agent.revoke("t", 300_000_000)
        assert used(node) == 0
        assert tenant_of(node, "t") is None
        left = free_of(node)
        assert left.free_memory_bytes == left.memory_bytes
        assert left.free_cores_permille == 1000
    assert worker.process.wait(10) != 0


def test_a_tenant_stays_released_while_no_agent_runs(node, work):
    granted = node.tenant("t", cores=900)
    undisturbed = work(node, granted, 300, 8).result()
    worker = work(node, granted, 300, 8)
    released(node, "t")
    assert node.stop() == 0
    time.sleep(1)
    assert used(node) < 1 << 20
    node.start()
    node.tenant("other", cores=500)
    with pytest.raises(PenstockError, match="other holds"):
        resume(node, "t")
    with node.client() as agent:
        agent.revoke("other", 0)
    resume(node, "t")
    settled(node, "t", "")
    assert worker.result() == undisturbed
