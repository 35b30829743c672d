"""Service notifications of the agent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest


def test_the_agent_tells_systemd_when_it_takes_orders_that_it_lives_and_when_it_stops(
    make_node, tmp_path
):
    node = make_node(start=False)
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(30)
        command = [sys.executable, "-m", "penstock", "agent", "--simulate=h200", "--metrics="]
        command += [f"--meter-dir={tmp_path / 'meter'}", f"--cdi-dir={tmp_path / 'cdi'}"]
        command += [f"--shim-dir={tmp_path / 'shim'}"]
        environment = {**node.environment, "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
        agent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            told = [listener.recv(100)]
            while b"READY=1" not in told:
                told.append(listener.recv(100))
            assert node.socket.exists()
            assert [listener.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            agent.terminate()
            while told[-1] != b"STOPPING=1":
                told.append(listener.recv(100))
            assert set(told) <= {b"READY=1", b"WATCHDOG=1", b"STOPPING=1"}
            assert agent.wait(30) == 0
        finally:
            agent.kill()
            agent.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="asks whether root's agent enforces: needs root")
def test_roots_agent_says_that_it_enforces(node):
    assert node.started["enforces"] is True
