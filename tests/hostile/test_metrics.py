"""Clients of the metrics port cost the agent one thread, and the reconcile loop nothing."""

from __future__ import annotations

import os
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.programs import backlogged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
BOUND_S = 1.0


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_thousands_of_idle_connections_hold_up_neither_rounds_nor_orders_nor_probes(
    make_node, hostile
):
    """Once, 20,000 of them delayed iterations by 39 s and more."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        probes = free.getsockname()[1]
    node = make_node(f"--probes=127.0.0.1:{probes}")
    node.launch(node.tenant("good", cores=300), *backlogged(60))
    wait_until(lambda: node.usage("good").devices[0].launches > 500)
    threads = threads_of(node.process.pid)
    programs = [
        hostile("idle_connections.py", node.started["metrics_port"], 2000) for _ in range(2)
    ]
    with node.client() as agent:
        end_s = time.monotonic() + 5
        while time.monotonic() < end_s:
            before_s = time.monotonic()
            agent.suspend("good")
            agent.resume("good")
            with urllib.request.urlopen(f"http://127.0.0.1:{probes}/healthz", timeout=5) as answer:
                assert answer.status == 200
            assert time.monotonic() - before_s < BOUND_S
            time.sleep(0.1)
        assert agent.node().slowest_round.ToNanoseconds() < BOUND_S * 1e9
    assert threads_of(node.process.pid) <= threads + 16  # the orders' own
    for program in programs:
        assert program.stdout.readline() == "ready\n"
    begun_s = time.monotonic()
    address = f"http://127.0.0.1:{node.started['metrics_port']}/metrics"
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert b"penstock_agent_heartbeat_age_seconds" in answer.read()
    assert time.monotonic() - begun_s < 6 * BOUND_S
    assert node.stop() == 0


def test_an_agent_whose_metrics_port_is_taken_by_a_user_serves_its_orders(make_node):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        node = make_node(f"--metrics=127.0.0.1:{port}")
        assert node.started["metrics_port"] is None
        node.tenant("good", cores=300)
    wait_until(lambda: _answers(port), 20)
    assert node.stop() == 0


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
