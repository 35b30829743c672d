"""The service file: systemd reads it, and what it starts tells systemd when it is ready."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "penstock-agent.service"


def service() -> dict[str, str]:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return dict(parser["Service"])


def test_tenants_outlive_the_service_and_their_files_its_restart():
    told = service()
    assert told["KillMode"] == "process"
    assert told["RuntimeDirectoryPreserve"] == "yes"
    assert told["Restart"] == "always"


def test_systemd_finds_nothing_wrong_with_the_unit():
    if shutil.which("systemd-analyze") is None:
        done = service()  # without systemd: that it is read is all there is to see
        assert done["Type"] == "notify"
        return
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert complaints == []


def test_the_agent_tells_systemd_when_it_takes_orders_and_when_it_stops(make_node, tmp_path):
    node = make_node(start=False)
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(30)
        command = [sys.executable, "-m", "penstock", "agent", "--simulate=h200", "--metrics="]
        command += [f"--meter-dir={tmp_path / 'meter'}", f"--cdi-dir={tmp_path / 'cdi'}"]
        command += [f"--shim-dir={tmp_path / 'shim'}"]
        environment = {**node.environment, "NOTIFY_SOCKET": str(path)}
        agent = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            assert listener.recv(100) == b"READY=1"
            assert node.socket.exists()
            agent.terminate()
            assert listener.recv(100) == b"STOPPING=1"
            assert agent.wait(30) == 0
        finally:
            agent.kill()
            agent.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="asks whether root's agent enforces: needs root")
def test_roots_agent_says_that_it_enforces(node):
    assert node.started["enforces"] is True
