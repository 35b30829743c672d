"""Commands of ordinary users beside root's agent, whose files they cannot read."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.conftest import GIB, Node, wait_until
from tests.agent.support.programs import LAUNCHER, backlogged, open_to_nobody

from penstock.bench.stage import KERNEL_RULES

NOBODY = 65534
# Python as another user. Where it lies in a folder that only root may enter, this process and its
# children see a folder of that name that holds just it.
PYTHON = """#!/bin/sh
exec unshare --mount sh -ec '
  if [ -n "{closed}" ]; then
    mount --rbind "{base}" "{aside}"
    mount -t tmpfs -o mode=755 none "{closed}"
    mkdir -p "{base}"
    mount --move "{aside}" "{base}"
  fi
  exec setpriv --reuid={uid} --regid={uid} --clear-groups "$0" "$@"
' {python} "$@"
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an agent for other users is root's")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Root's agent, started as in README; it meters into an unusual directory."""
    one = Node(tmp_path_factory.mktemp("others") / "state")
    one.start()
    open_to_nobody(one)
    yield one
    one.close()


@pytest.fixture(scope="module")
def nobody(node):
    """The same node, with commands run by another user."""
    base = Path(sys.base_prefix).resolve()
    folders = [*reversed(base.parents), base]
    closed = next((one for one in folders if not one.stat().st_mode & 0o001), "")
    aside = node.state.with_name("aside")
    aside.mkdir()
    script = node.state.with_name("python")
    script.write_text(
        PYTHON.format(closed=closed, base=base, aside=aside, uid=NOBODY, python=sys.executable)
    )
    script.chmod(0o755)
    theirs = copy.copy(node)
    theirs.python = str(script)
    return theirs


@pytest.fixture(scope="module")
def theirs(node, nobody):
    """A tenant that the other user runs during these tests."""
    command = [nobody.python, "-m", "penstock", "run", "--memory=4Gi", "--cores=30"]
    command += ["--name=theirs", "--", LAUNCHER, *backlogged(300)]
    program = node.launch_in({**node.environment, "PENSTOCK_SIM_KERNELS": KERNEL_RULES}, *command)

    def is_up() -> bool:
        assert program.poll() is None, program.communicate()
        return (node.state / "tenants/theirs").exists() and bool(node.usage("theirs").slots)

    wait_until(is_up)
    yield program
    with node.client() as agent:
        agent.revoke("theirs", 0)


def asked(node, *words: str):
    """The JSON output of `penstock …` for that user."""
    done = node(*words, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_another_users_program_gets_the_simulated_device(node, theirs):
    wait_until(lambda: node.usage("theirs").devices[0].launches > 10)
    assert theirs.poll() is None


def test_a_machine_that_cannot_be_opened_is_said_in_the_log(node, nobody):
    machine = node.state / "machines" / "h200x1"
    assert machine.stat().st_mode & 0o777 == 0o666
    machine.chmod(0o600)
    try:
        command = ["run", "--memory=1Gi", "--cores=1", "--", LAUNCHER, *backlogged(1)]
        done = nobody(*command, env={"PENSTOCK_LOG": "stderr"})
    finally:
        machine.chmod(0o666)
    assert done.returncode != 0
    assert f"simulated machine {str(machine)[:100]}" in done.stderr
    assert "is another user's alone" in done.stderr
    assert "chmod 666" in done.stderr


@pytest.mark.usefixtures("theirs")
def test_a_user_asks_the_agent_for_events_and_quota(node, nobody):
    events = asked(nobody, "events", "theirs")
    assert events[0]["event"] == "granted"
    assert events[0]["command"][0] == LAUNCHER
    assert events == json.loads(node("events", "theirs", "-o", "json").stdout)  # by root: the files
    quota = asked(nobody, "quota", "show", "theirs")
    assert quota == json.loads(node("quota", "show", "theirs", "-o", "json").stdout)
    assert quota["devices"][0]["cores"] == "30"
    for words in (["events", "nobodys"], ["quota", "show", "nobodys"]):
        refused = nobody(*words)
        assert refused.returncode == 2
        assert "no tenant 'nobodys'" in refused.stderr


@pytest.mark.usefixtures("theirs")
def test_a_process_list_that_is_not_told_is_null_and_its_length_is_known(node, nobody):
    for words in (["ps"], ["top", "--once"]):
        (row,) = [one for one in asked(nobody, *words) if one["tenant"] == "theirs"]
        assert row["process_count"] == 1, words
        assert row["processes"] is None
        assert row["members"] is None
    table = nobody("ps").stdout
    (line,) = [line for line in table.splitlines() if "theirs" in line]
    assert line.split()[-1] == "1"
    (row,) = json.loads(node("ps", "-o", "json").stdout)
    assert len(row["processes"]) == row["process_count"] == 1


@pytest.mark.usefixtures("theirs")
def test_usage_is_asked_of_the_agent_wherever_it_meters(node, nobody):
    def row(name: str):
        said = asked(nobody, "usage", "--since=1h")
        return next((one for one in said["usage"] if one["tenant"] == name), None)

    found = wait_until(lambda: (one := row("theirs")) and one["device_ns"] > 0 and one)
    assert found["user"] in {"nobody", str(NOBODY)}
    files = json.loads(node("usage", f"--meter-dir={node.state}-meter", "-o", "json").stdout)
    assert "theirs" in [one["tenant"] for one in files["usage"]]
    assert asked(nobody, "usage", "--by=device")["usage"][0]["device_uuid"].startswith("GPU-")
    refused = nobody("usage", "nobodys")
    assert refused.returncode == 2
    assert "no readings of a tenant 'nobodys'" in refused.stderr
    assert nobody("usage", "--since=40000d").returncode == 0
    wrong = nobody("usage", "--since=1h", "--until=2h")
    assert "is not before its end" in wrong.stderr


@pytest.mark.usefixtures("theirs")
def test_the_doctor_finds_a_healthy_agent_well_whoever_asks(node, nobody):
    node.tenant("contained", memory=GIB, cores=100, container=True)
    try:
        for who in (node, nobody):
            done = who("doctor", "-o", "json")
            findings = json.loads(done.stdout)["findings"]
            assert [one for one in findings if one["status"] == "failure"] == [], who.python
            (agent,) = [one for one in findings if one["check"] == "agent"]
            assert agent["status"] == "ok"
            assert "drives simulated 0 NVIDIA H200" in agent["seen"]
        (page,) = [node.state / "tenants" / "theirs" / "quota"]
        page.chmod(0o666)
        (found,) = [
            one
            for one in json.loads(node("doctor", "-o", "json").stdout)["findings"]
            if one["check"] == "tenant theirs"
        ]
        page.chmod(0o644)
        assert found["status"] == "failure"
        assert f"chmod 600 {page}" in found["advice"]
    finally:
        with node.client() as agent:
            agent.revoke("contained", 0)


def test_following_events_ends_with_the_tenant(node, nobody):
    node.tenant("followed", memory=GIB, cores=50)
    follower = node.launch_in(
        node.environment, nobody.python, "-m", "penstock", "events", "followed", "-f"
    )
    assert "granted" in follower.stdout.readline()
    with node.client() as agent:
        agent.suspend("followed", "for a while")
        assert "suspend" in follower.stdout.readline()
        agent.revoke("followed", 0)
    assert follower.wait(20) == 0


def test_an_agent_that_hangs_or_was_killed_is_told(make_node):
    node = make_node()
    node.process.send_signal(19)  # SIGSTOP: it listens, and never answers
    try:
        (hangs,) = [
            one
            for one in json.loads(node("doctor", "-o", "json").stdout)["findings"]
            if one["check"] == "agent"
        ]
    finally:
        node.process.send_signal(18)
    assert hangs["status"] == "failure"
    assert "did not respond in time" in hangs["seen"]
    node.kill()
    (dead,) = [
        one
        for one in json.loads(node("doctor", "-o", "json").stdout)["findings"]
        if one["check"] == "agent"
    ]
    assert dead["status"] == "warning"
    assert "systemctl restart penstock-agent" in dead["advice"]


RELEASE = """
import sys
from pathlib import Path
from penstock.node.rpc import AgentClient
AgentClient.local(Path(sys.argv[1])).release_driver("mine")
"""


def test_a_user_cannot_have_the_driver_let_go_of(node, nobody):
    done = subprocess.run(
        [nobody.python, "-c", RELEASE, node.socket], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "to release the driver" in done.stderr
    with node.client() as agent:
        assert agent.node().driver_released == ""
