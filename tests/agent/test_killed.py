"""Killed agent: its tenants continue, and the next agent adopts them as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.agent.conftest import request, wait_until
from tests.agent.support.programs import LAUNCHER, backlogged, start_past_the_shim

from penstock.bench.stage import KERNEL_RULES
from penstock.model import PenstockError
from penstock.node.admission.resize import Resize
from penstock_shim.pages import read_quota

pytestmark = pytest.mark.timed


def share(node, name, seconds):
    """Its share of the device over the next `seconds` in percent, by the device's own record."""

    def busy():
        records = [r for r in node.machine().record(0) if r.tag == name]
        return sum(r.busy_ns for r in records), records[0].at_ns

    busy_ns, at_ns = busy()
    wait_until(lambda: busy()[1] - at_ns >= seconds * 1e9)
    later_ns, until_ns = busy()
    return 100 * (later_ns - busy_ns) / (until_ns - at_ns)


def test_without_an_agent_a_tenant_keeps_its_quota(node):
    node.launch(node.tenant("t", cores=300), *backlogged(60))
    wait_until(lambda: node.usage("t").devices[0].launches > 200)
    node.kill()
    time.sleep(0.5)
    assert abs(share(node, "t", 2.0) - 30) < 3


def test_what_was_granted_suspended_and_changed_is_so_for_the_next_agent(node):
    node.tenant("t", cores=300, labels={"team": "vision"}, measured="suspend", grace_ns=3 * 10**9)
    with node.client() as agent:
        agent.resize("t", Resize(cores_permille=450, mode="elastic"))
        agent.suspend("t")
        before = agent.tenants()[0]
    node.kill()
    node.start()
    with node.client() as agent:
        (after,) = agent.tenants()
        assert after.suspended
        assert after.labels == {"team": "vision"}
        for told in (before, after):  # how many are there is as of each agent's last look
            told.ClearField("processes"), told.ClearField("members")
        assert after == before
        with pytest.raises(PenstockError, match="not enough left"):
            agent.grant(request("u", cores=700))


def test_a_tenant_that_waits_without_processes_is_there_after_a_restart(node):
    node.tenant("t")
    node.kill()
    node("ps")  # what only looks must not tidy it away either
    node.start()
    with node.client() as agent:
        assert [tenant.name for tenant in agent.tenants()] == ["t"]


def test_a_command_that_ends_while_no_agent_is_there_is_metered_and_leaves_no_tenant(node):
    command = ["run", "-q", "--name=t", "--memory=1Gi", "--cores=10", "--"]
    environment = {**node.environment, "PENSTOCK_SIM_KERNELS": KERNEL_RULES}
    run = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command, LAUNCHER, *backlogged(600)], env=environment
    )
    try:
        wait_until((node.state / "tenants" / "t").exists)
        wait_until(lambda: node.usage("t").devices[0].launches > 10)
        node.kill()
    finally:
        for child in children_of(run.pid):
            os.kill(child, 9)
        run.wait()
    assert node("ps").returncode == 0  # looks, and tidies nothing away
    spent_ns = node.usage("t").devices[0].spent_ns
    assert spent_ns > 0
    node.start()
    wait_until(lambda: not (node.state / "tenants" / "t").exists(), 40)
    (row,) = json.loads(node("usage", "t", "--since=1h", "-o", "json").stdout)["usage"]
    assert row["device_ns"] == spent_ns


def children_of(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_resize_that_was_killed_half_way_is_finished_by_the_next_agent(node):
    node.tenant("t", cores=300)
    node.kill()
    grant = node.state / "tenants" / "t" / "grant.yaml"
    grant.write_text(
        grant.read_text().replace("cores: '30'", "cores: '40'").replace("cores: 30", "cores: 40")
    )
    assert "40" in grant.read_text()
    node.start()
    page = node.state / "tenants" / "t" / "quota"
    wait_until(lambda: read_quota(page).limits.devices[0].cores_permille == 400)


def test_a_run_that_meets_an_agent_which_is_started_anew_waits_for_it(node):
    node.kill()
    run = subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "--memory=1Gi", "--cores=10", "--", "true"],
        env=node.environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    node.start()
    assert "granted by the agent" in run.communicate(timeout=60)[1]
    assert run.returncode == 0


LEASE = (
    "import fcntl, os, signal, sys, time; signal.signal(signal.SIGIO, signal.SIG_IGN); "
    "fcntl.fcntl(os.open(sys.argv[1], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK); "
    "print('held', flush=True); time.sleep(600)"
)


def test_a_tenant_that_keeps_its_page_shut_is_the_next_agents_all_the_same(node):
    bad = node.tenant("bad", measured="deny")
    node.tenant("torn", measured="deny")
    node.kill()
    page = node.state / "tenants" / "bad" / "usage"
    holder = node.launch_in(dict(os.environ), sys.executable, "-c", LEASE, str(page))
    assert holder.stdout.readline() == "held\n"
    os.truncate(node.state / "tenants" / "torn" / "usage", 0)
    program = start_past_the_shim(node, bad)
    node.start()
    with node.client() as agent:
        found = {tenant.name: tenant.finding for tenant in agent.tenants()}
        assert "cannot be read" in found["bad"]
        assert "shorter than the page" in found["torn"]
        # Enforcement knows its processes, and the next agent lets nobody else have its share.
        wait_until(lambda: [e for e in node.events("bad") if e["event"] == "exceeded"], 40)
        holder.kill()
        holder.wait()
        wait_until(lambda: "cannot be read" not in agent.tenants()[0].finding)
        assert agent.revoke("torn", 0).killed == 0
        assert agent.revoke("bad", 0).killed == 1
        assert program.wait(10) != 0
        assert agent.tenants() == []
