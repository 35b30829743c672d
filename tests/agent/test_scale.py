"""`penstock scale` beside an agent: replicas are its tenants."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from tests.scale.conftest import Bench, end_processes, wait_until


@pytest.fixture
def bench(make_node, tmp_path):
    """A replica set and an agent that share a state directory."""
    bench = Bench(tmp_path, simulate=())
    bench.orders()
    bench.node = make_node(start=False)
    bench.node.state = bench.state
    bench.node.socket = bench.state / "agent.sock"
    bench.node.start()
    yield bench
    for process in bench.started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    wait_until(lambda: not end_processes(bench.state))


def said(bench, words):
    return lambda: any(words in line for line in bench.said)


def test_replicas_follow_load_and_outlive_agent_and_scaler(bench):
    node = bench.node
    policy = bench.policy(least=2, most=5, metrics="cores: {up: 80, down: 30}")
    fits = node("scale", str(policy), "--dry-run", "--", *bench.command())
    assert "web: 2 to 5 replicas" in fits.stdout, fits.stderr
    assert "5 more fit now" in fits.stdout
    scaler = bench.scale()
    before = bench.wait_for(2)
    with node.client() as agent:
        granted = {tenant.name: tenant for tenant in agent.tenants()}
    assert set(granted) == {"web-1", "web-2"}
    assert granted["web-1"].shares[0].cores_permille == 100
    assert granted["web-1"].policy.startswith("web (")

    # While nobody grants, what runs goes on, and what died waits.
    node.kill()
    os.kill(before[2], signal.SIGKILL)
    wait_until(said(bench, "no agent answers"))
    assert bench.running() == {1: before[1]}
    node.start()
    wait_until(lambda: set(bench.running()) == {1, 2}, "replica 2 again", 60)
    assert bench.running()[1] == before[1]

    # The next scaler takes the same replicas over, and grows by what the agent's pages say.
    scaler.kill()
    scaler.wait()
    now = bench.running()
    again = bench.scale()
    wait_until(said(bench, "adopts 2 running replicas"))
    assert bench.running() == now
    bench.orders(cores=3)
    wait_until(lambda: len(bench.running()) >= 3, "a third replica", 60)
    with node.client() as agent:
        assert "web-3" in {tenant.name for tenant in agent.tenants()}

    again.send_signal(signal.SIGTERM)
    assert again.wait(60) == 0
    assert not bench.running()
    wait_until(lambda: not bench.tenants(), "the agent's tenants to end")


def test_a_command_that_cannot_start_leaves_no_tenant(bench):
    bench.policy()
    bench.scale(command=["/no/such/command"])
    wait_until(said(bench, "web-1 cannot run '/no/such/command'"))
    wait_until(lambda: not bench.tenants())
    refused = bench.node("scale", str(bench.policy()), "--simulate=h200", "--", "true")
    assert refused.returncode == 2
    assert "leave --simulate out" in refused.stderr.replace("\n", " ")
