"""Periodic tasks of the agent: enforcement, metering and metrics."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.programs import LAUNCHER, backlogged, environment_for, start_past_the_shim
from tests.agent.support.readings import shown

pytestmark = pytest.mark.timed


POLICY = """\
apiVersion: penstock.io/v1alpha1
kind: QuotaPolicy
metadata: {name: strict}
spec: {limits: {memory: 4Gi, cores: 30}, onExceed: {measured: terminate, grace: 1s}}
"""


def test_who_takes_the_device_past_the_shim_is_ended_and_the_neighbour_runs_on(node):
    bad = node.tenant("bad", cores=200, measured="terminate", grace_ns=10**9)
    good = node.launch(node.tenant("good", cores=300), *backlogged(600))
    wait_until(lambda: node.usage("good").devices[0].launches > 50)
    program = start_past_the_shim(node, bad)
    wait_until(lambda: program.poll() is not None, 40)
    events = wait_until(lambda: [e for e in node.events("bad") if e["event"] == "terminate"])
    assert events[0]["processes"][0]["pid"] == program.pid
    assert events[0]["reason"]
    assert good.poll() is None
    assert not [
        e for e in node.events("good") if e["event"] in {"throttle", "suspend", "terminate"}
    ]


def test_what_the_device_measured_and_nobody_charged_is_told_and_an_order_to_suspend_stops_it(node):
    bad = node.tenant("bad", cores=200, measured="deny")
    program = start_past_the_shim(node, bad)
    suspicion = wait_until(
        lambda: [e["reason"] for e in node.events("bad") if e["event"] == "suspicious"], 60
    )[0]
    assert "but its page charged 0.0 s" in suspicion
    with node.client() as agent:
        agent.suspend("bad")
        wait_until(lambda: state_of(program.pid) == "T")
        agent.resume("bad")
        wait_until(lambda: state_of(program.pid) in {"S", "R"})


def test_revoke_ends_also_what_left_its_parents_and_its_environment(node):
    """They are found by ancestors, session and enforcement's memory; another user's is spared."""
    node.tenant("other")
    granted = node.tenant("t")
    script = (
        "env -i sleep 1001 & setsid env -i sleep 1002 & "
        "(sleep 1.5; setsid env -i sh -c 'sleep 1003; :' & sleep 2.5) & "
        "read line"
    )
    elsewhere = {"PENSTOCK_TENANT_DIR": granted.environment["PENSTOCK_TENANT_DIR"]}
    as_nobody = ("setpriv", "--reuid=65534", "--clear-groups", "sleep", "1004")
    stranger = node.launch_in({**os.environ, **elsewhere}, *as_nobody)
    node.launch_in(environment_for(granted), "sh", "-c", script)
    wait_until(lambda: len(sleeping("1001", "1002", "1003", "1004")) == 4)
    wait_until(lambda: not sleeping("2.5"), 20)
    with node.client() as agent:
        agent.revoke("t", 0)
        assert sleeping("1001", "1002", "1003", "1004") == {"1004"}
        name = "ended"
        elsewhere = {"PENSTOCK_TENANT_DIR": str(node.state / "tenants" / name)}
        node.launch_in({**os.environ, **elsewhere}, *as_nobody)
        done = node("run", f"--name={name}", "--memory=1Gi", "--cores=10", "--", "true")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: [one.name for one in agent.tenants()] == ["other"])
    assert stranger.poll() is None


IN_ANOTHERS_NAME = """
import ctypes, sys, time
sys.stdin.readline()
new = b"PENSTOCK_TENANT_DIR=" + sys.argv[1].encode()
entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
for entry in entries:
    if entry is None:
        break
    old = ctypes.string_at(entry)
    if old.startswith(b"PENSTOCK_TENANT_DIR=") and len(old) == len(new):
        ctypes.memmove(entry, new, len(new))
        print("renamed", flush=True)
time.sleep(600)
"""


def test_revoke_ends_who_names_another_tenant_of_the_same_user_by_now(node):
    """/proc reads an environment from the memory of the process itself."""
    other, granted = node.tenant("b"), node.tenant("a")
    name = other.environment["PENSTOCK_TENANT_DIR"]
    bystander = node.launch_in(environment_for(other), "sleep", "600")
    command = [sys.executable, "-c", IN_ANOTHERS_NAME, name]
    program = node.launch_in(environment_for(granted), *command)
    with node.client() as agent:
        members = {"a": 1, "b": 1}
        wait_until(lambda: {one.name: one.members for one in agent.tenants()} == members)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "renamed\n"
        raw = Path(f"/proc/{program.pid}/environ").read_bytes()
        assert f"PENSTOCK_TENANT_DIR={name}".encode() in raw.split(b"\0")
        agent.revoke("a", 0)
    assert program.wait(5) in {-signal.SIGTERM, -signal.SIGKILL}
    assert bystander.poll() is None


def sleeping(*seconds: str) -> set[str]:
    """The processes that run `sleep SECONDS`."""
    found = set()
    # Not "[0-9]*/cmdline": pathlib would look each up, outside the block that forgives the dead.
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text().split("\0")
            if words[0] == "sleep" and words[1] in seconds and state_of(int(process.name)) != "Z":
                found.add(words[1])
    return found


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_policy_that_only_suspends_ends_nothing_and_survives_the_agent(node):
    bad = node.tenant("bad", cores=200, measured="suspend", grace_ns=10**9)
    program = start_past_the_shim(node, bad)
    wait_until(lambda: [e for e in node.events("bad") if e["event"] == "suspend"], 40)
    # While it lasts, it is seen wherever one looks.
    with node.client() as agent:
        finding = wait_until(lambda: agent.tenants()[0].finding)
        assert finding.startswith("suspend: ")
        assert str(program.pid) in finding
    wait_until(lambda: shown(node, "penstock_tenant_findings", 'kind="uncharged"') == [1])
    assert shown(node, "penstock_tenant_suspended", 'tenant="bad"') == [1]
    assert "bad: suspend: " in node("ps").stdout
    assert json.loads(node("ps", "-o", "json").stdout)[0]["problem"].startswith("suspend: ")
    assert "bad: suspend: " in node("top", "--once").stdout
    node.kill()
    node.start()
    wait_until(lambda: [e for e in node.events("bad") if e["event"] == "adopted"])
    assert Path(f"/proc/{program.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    program.kill()
    program.wait()
    wait_until(lambda: json.loads(node("ps", "-o", "json").stdout)[0]["problem"] is None, 60)


def test_who_was_ended_is_told_why_and_can_ask_when_the_tenant_is_gone(node, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    environment = environment_for(node.tenant("other"))
    script = f"unset LD_PRELOAD; exec {LAUNCHER} {' '.join(backlogged(600))}"
    done = node(
        "run", "--name=bad", f"--policy={policy}", "--", "sh", "-c", script,
        env={"PENSTOCK_SIM_KERNELS": environment["PENSTOCK_SIM_KERNELS"]},
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode in {143, 137}, done.stderr
    assert "penstock: tenant bad: ended by the agent (SIG" in done.stderr
    wait_until(lambda: not (node.state / "tenants" / "bad").exists())
    told = node("events", "bad")
    assert told.returncode == 0, told.stderr
    assert "terminate" in told.stdout
    with node.client() as agent:
        assert "terminate" in [one.event for one in agent.events(["bad"])]
        agent.revoke("other", 0)
    assert [one["event"] for one in json.loads(node("events", "other", "-o", "json").stdout)][
        -1
    ] == "revoked"


def test_an_operators_suspension_is_not_taken_for_enforcements_by_the_next_agent(node):
    node.tenant("t", cores=200)
    with node.client() as agent:
        agent.suspend("t")
    node.kill()
    node.start()
    with node.client() as agent:
        assert agent.tenants()[0].suspended
        assert not agent.resume("t").suspended


def test_what_a_tenant_used_is_metered_to_the_nanosecond_over_kills_of_the_agent(node):
    program = node.launch(node.tenant("t", cores=400), *backlogged(600))
    for _ in range(3):
        spent = node.usage("t").devices[0].spent_ns
        wait_until(lambda spent=spent: node.usage("t").devices[0].spent_ns > spent + 3 * 10**8)
        node.kill()
        node.start()
    program.kill()
    program.wait()
    wait_until(lambda: not node.usage("t").slots)
    spent = node.usage("t").devices[0].spent_ns
    with node.client() as agent:
        agent.revoke("t", 0)
    assert node.stop() == 0
    done = node("usage", "t", "--since=1h", "-o", "json", f"--meter-dir={node.state}-meter")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["usage"]
    assert row["device_seconds"] * 1e9 == spent or row.get("device_ns") == spent, row


def test_usage_tells_what_was_used_to_the_last_round_and_all_of_a_tenant_that_ended(node):
    def told_ns() -> int:
        (row,) = json.loads(node("usage", "t", "--since=1h", "-o", "json").stdout)["usage"]
        return row["device_ns"]

    program = node.launch(node.tenant("t", cores=300), *backlogged(600))
    wait_until(lambda: node.usage("t").devices[0].launches > 50)
    spent_ns = node.usage("t").devices[0].spent_ns
    time.sleep(2.5)  # rounds of metering come every second; files are written every ten
    assert told_ns() >= spent_ns
    program.kill()
    program.wait()
    wait_until(lambda: not node.usage("t").slots)
    spent_ns = node.usage("t").devices[0].spent_ns
    with node.client() as agent:
        agent.revoke("t", 0)
    assert told_ns() == spent_ns


def test_prometheus_finds_the_tenants(node):
    node.launch(node.tenant("t", cores=400), *backlogged(600))
    url = f"http://127.0.0.1:{node.started['metrics_port']}/metrics"

    def shown():
        with urllib.request.urlopen(url, timeout=5) as answer:
            return 'tenant="t"' in (text := answer.read().decode()) and text

    text = wait_until(shown)
    assert "penstock_" in text


def test_a_node_whose_devices_cannot_be_asked_says_so_once(node):
    node.tenant("t")
    machine = node.state / "machines" / "h200x1"
    os.truncate(machine, 0)
    lines = [json.loads(node.process.stderr.readline()) for _ in range(2)]
    assert lines[0]["event"] == "device-lost"
    line = lines[1]
    assert (line["event"], line["task"]) == ("failing", "EnforcementTask")
    assert line["reason"]
    url = f"http://127.0.0.1:{node.started['metrics_port']}/metrics"

    def is_shown():
        with urllib.request.urlopen(url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return [
            one
            for one in lines
            if one.startswith("penstock_device_available{") and one.endswith(" 0.0")
        ]

    wait_until(is_shown)
    with node.client() as agent:
        assert [tenant.name for tenant in agent.tenants()] == ["t"]
