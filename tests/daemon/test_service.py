"""The service under a real systemd: started, watched, killed, changed, taken away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.programs import LAUNCHER, backlogged
from tests.daemon.support import booted_machine

from penstock.bench.stage import KERNEL_RULES
from penstock_shim.pages import read_usage

pytestmark = pytest.mark.timed

UNIT = booted_machine.REPOSITORY / "controller/penstock/node/service/penstock-agent.service"
NOBODY = 65534
POLICY = """\
apiVersion: penstock.io/v1alpha1
kind: QuotaPolicy
metadata: {name: node}
spec: {limits: {memory: 4Gi, cores: 30}, onExceed: {measured: terminate, grace: 1s}}
"""
EXPOSURE = 4.0  # of 10: "OK" in systemd's own words


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    try:
        made = booted_machine.Booted(tmp_path_factory.mktemp("machine") / "base")
    except booted_machine.NotToBeHadError as why:
        pytest.skip(f"no real systemd: {why}")
    made("mkdir", "-p", "/etc/penstock/policies")
    made.write("/etc/penstock/policies/node.yaml", POLICY)
    made.write("/etc/penstock/agent.env", "PENSTOCK_AGENT_OPTIONS=--simulate h200\n")
    yield made
    made.close()


def launcher() -> str:
    """The path of the program on that machine."""
    return "/opt/penstock/lib" + LAUNCHER.partition("/lib")[2]


def start(machine, name: str, *before: str) -> subprocess.Popen[str]:
    """A tenant that launches without a pause. `before`: what its command begins with."""
    options = [f"--name={name}", "-q"]  # the quota is the node's policy's
    command = [*before, launcher(), *backlogged(300)]
    return machine.start("penstock", "run", *options, "--", *command,
                         PENSTOCK_SIM_KERNELS=KERNEL_RULES)  # fmt: skip


def launches(machine, name: str) -> int:
    try:
        page = read_usage(machine.path(f"/run/penstock/tenants/{name}/usage"))
    except Exception:  # noqa: BLE001 - it is not there yet
        return 0
    return page.devices[0].launches


def journal(machine) -> list[dict]:
    """The agent's log."""
    said = machine("journalctl", "-u", "penstock-agent", "-o", "cat", "--no-pager").stdout
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def agent_pid(machine) -> int:
    return int(machine.show("MainPID")["MainPID"])


def outer_pid(machine, pid: int) -> int:
    """The pid on this machine of process `pid` on that one."""
    inside = machine("readlink", f"/proc/{pid}/ns/pid").stdout.strip()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text()
                namespace = str((entry / "ns/pid").readlink())
            except OSError:
                continue
            if namespace == inside and f"NSpid:\t{entry.name}\t{pid}\n" in status:
                return int(entry.name)
    raise AssertionError(pid)


def test_the_service_and_its_tenants_survive_kills_and_freezes(machine):
    done = machine("/opt/penstock/bin/penstock", "agent", "install")
    assert "systemctl restart penstock-agent.service" in done.stderr
    service = machine.show("ActiveState", "UnitFileState", "NotifyAccess", "Delegate")
    assert (service["ActiveState"], service["UnitFileState"]) == ("active", "enabled")
    assert journal(machine)[0]["event"] == "started"  # it was ready when install had ended
    assert journal(machine)[0]["enforces"] is True
    tenant = start(machine, "t")
    wait_until(lambda: launches(machine, "t") > 50)

    # Killed more often (5) than systemd's own limit would let it come back.
    for _ in range(6):
        pid = agent_pid(machine)
        os.kill(outer_pid(machine, pid), signal.SIGKILL)
        wait_until(lambda pid=pid: agent_pid(machine) not in {0, pid})
        wait_until(lambda: machine.show("SubState")["SubState"] == "running")
    assert tenant.poll() is None
    assert [one["tenants"] for one in journal(machine) if one["event"] == "started"][-1] == ["t"]

    # The rounds stand still: the watchdog ends it. Not after 30 s, so that this test is quick.
    machine("mkdir", "-p", "/run/systemd/system/penstock-agent.service.d")
    machine.write(
        "/run/systemd/system/penstock-agent.service.d/quick.conf", "[Service]\nWatchdogSec=2\n"
    )
    again = machine("/opt/penstock/bin/penstock", "agent", "install")  # what an upgrade does
    assert "keep /etc/systemd/system/penstock-agent.service (it is up to date)" in again.stderr
    pid = agent_pid(machine)
    time.sleep(3)  # longer than the watchdog waits: rounds that go on keep it quiet
    assert agent_pid(machine) == pid
    os.kill(outer_pid(machine, pid), signal.SIGSTOP)
    wait_until(lambda: agent_pid(machine) not in {0, pid})
    said = machine("journalctl", "-u", "penstock-agent", "-o", "cat", "--no-pager").stdout
    assert "Watchdog timeout" in said

    # With what it is left of root it ends another user's program that goes round the shim.
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    bad = start(machine, "bad", *as_nobody, "env", "-u", "LD_PRELOAD")
    assert bad.wait(40) == 128 + signal.SIGTERM, bad.communicate()
    wait_until(lambda: not machine.path("/run/penstock/tenants/bad").exists())
    before = launches(machine, "t")
    wait_until(lambda: launches(machine, "t") > before)
    assert tenant.poll() is None

    # Stopped, and gone: the tenant still goes on.
    gone = machine("/opt/penstock/bin/penstock", "agent", "uninstall")
    assert "keep /etc/penstock/agent.env (--purge removes it)" in gone.stderr
    assert "keep /etc/penstock/policies (--purge removes it)" in gone.stderr
    assert machine("systemctl", "is-active", "penstock-agent", check=False).returncode != 0
    assert not machine.path("/etc/systemd/system/penstock-agent.service").exists()
    before = launches(machine, "t")
    wait_until(lambda: launches(machine, "t") > before)
    refused = machine("/opt/penstock/bin/penstock", "agent", "uninstall", "--purge", check=False)
    assert refused.returncode == 2
    assert "1 tenants exist: --purge would remove the state of t" in refused.stderr.replace(
        "\n", " "
    )
    (program,) = read_usage(machine.path("/run/penstock/tenants/t/usage")).slots
    machine("kill", str(program.pid))
    assert tenant.wait(30) == 128 + signal.SIGTERM
    tenant.communicate()


def test_a_start_that_fails_until_somebody_repairs_it_is_retried_with_pauses(machine):
    machine.write("/etc/penstock/agent.env", "PENSTOCK_AGENT_OPTIONS=--metrics=nowhere\n")
    machine("/opt/penstock/bin/penstock", "agent", "install", "--no-start")
    machine("systemctl", "daemon-reload")
    machine("systemctl", "start", "--no-block", "penstock-agent")
    wait_until(lambda: machine.show("SubState")["SubState"] == "stop-post")
    restarts = machine.show("NRestarts")["NRestarts"]
    began = time.monotonic()
    wait_until(lambda: machine.show("NRestarts")["NRestarts"] != restarts)
    assert time.monotonic() - began > 2  # of five
    machine.write("/etc/penstock/agent.env", "PENSTOCK_AGENT_OPTIONS=--simulate=h200\n")
    machine("systemctl", "restart", "penstock-agent")
    assert machine.show("SubState")["SubState"] == "running"


def test_systemd_finds_nothing_wrong_with_the_unit_and_little_exposed(machine):
    machine("/opt/penstock/bin/penstock", "agent", "install", "--no-start")
    done = machine("systemd-analyze", "verify", "--man=no", "penstock-agent.service")
    assert "penstock" not in done.stderr
    done = machine("systemd-analyze", "security", "--no-pager", "penstock-agent.service")
    assert float(done.stdout.partition("service: ")[2].split()[0]) <= EXPOSURE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_can_read_the_unit_as_it_is_shipped():
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(UNIT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert all("/opt/penstock/bin/penstock is not executable" in line for line in complaints)
