"""Members of a tenant, found by the kernel's figures; and signals that hit no other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.enforce.support.processes import line, reuse_pid, start

from penstock.node.enforcement.cgroup import containers_of
from penstock.node.enforcement.members import Members
from penstock.node.enforcement.process import Process, command_line, find, is_alive, read_stat, send
from penstock.node.tenants import tenant_processes as processes

from .conftest import state_of

S = 1_000_000_000


def test_a_tenants_process_stays_its_own_when_its_environment_and_parents_are_gone(node, started):
    guest = node.tenant("t")
    members = Members()
    script = "echo ready; read x; env -i setsid sh -c 'echo $$; exec sleep 60' & sleep 60"
    shell = subprocess.Popen(
        ["sh", "-c", script], env=guest.environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    started.append(shell)
    assert line(shell) == "ready"
    members.scan(0, [guest.subject])
    assert members.tenant_of(shell.pid) == "t"
    shell.stdin.write("go on\n")
    shell.stdin.flush()
    orphan = int(line(shell))
    members.scan(S, [guest.subject])
    shell.kill()
    shell.wait()
    shell.stdin.close()
    members.scan(2 * S, [guest.subject])
    try:
        assert read_stat(orphan).parent != shell.pid
        assert members.tenant_of(orphan) == "t"
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_session_that_the_tenant_began_is_its_own_when_its_leader_has_ended(node, started):
    guest = node.tenant("t")
    members = Members()
    program = "import os, sys, time\nprint('up', flush=True); time.sleep(1)\n"
    fork = (
        "if os.fork(): os._exit(0)\n"
        "os.execve('/bin/sh', ['sh', '-c', 'echo $$; exec sleep 60'], {})\n"
    )
    leader = start(started, sys.executable, "-c", program + fork, env=guest.environment)
    assert line(leader) == "up"
    members.scan(0, [guest.subject])
    orphan = int(line(leader))
    leader.wait()
    members.scan(S, [guest.subject])
    try:
        assert members.tenant_of(orphan) == "t"
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_what_a_named_parent_starts_is_the_tenants_and_the_parent_is_not(node, started):
    guest = node.tenant("t")
    parent = start(started, "sh", "-c", "sleep 60 & echo $!; wait", env={"PATH": "/bin:/usr/bin"})
    child = int(line(parent))
    node.change(guest, parents=frozenset({find(parent.pid)}))
    members = Members()
    members.scan(0, [guest.subject])
    assert members.tenant_of(child) == "t"
    assert members.tenant_of(parent.pid) is None


def test_none_is_not_known_while_an_agent_that_was_started_anew_cannot_read_all(
    node, started, monkeypatch
):
    """Before, a share whose container ran on was given away three seconds after such a start."""
    guest = node.tenant("t")
    program = start(started, "sleep", "60")

    def mounted(pid, _):
        if pid == program.pid:
            raise TimeoutError

    monkeypatch.setattr("penstock.node.enforcement.members.mounted_pages", mounted)
    members = Members()
    for now_ns in (S, 2 * S):
        members.scan(now_ns, [guest.subject])
        assert members.count("t") is None
    members.scan(40 * S, [guest.subject])
    assert members.count("t") == 0, "nobody withholds that for ever"


def test_what_a_caller_of_several_tenants_starts_is_whose_its_environment_names(node, started):
    first, last = node.tenant("first"), node.tenant("last")
    script = (
        'PENSTOCK_TENANT_DIR="$1" sleep 60 & echo $!; '
        "PENSTOCK_TENANT_DIR=/none sleep 60 & echo $!; wait"
    )
    directory = first.environment["PENSTOCK_TENANT_DIR"]
    path = {"PATH": "/bin:/usr/bin"}
    parent = start(started, "sh", "-c", script, "sh", directory, env=path)
    named, unnamed = int(line(parent)), int(line(parent))
    for guest in (first, last):
        node.change(guest, parents=frozenset({find(parent.pid)}))
    members = Members()
    wait_until(lambda: read_stat(unnamed).comm == read_stat(named).comm == "sleep")
    members.scan(0, [first.subject, last.subject])
    assert members.tenant_of(named) == "first"
    assert members.tenant_of(unnamed) == "last"


def test_what_another_starts_that_has_the_pid_of_a_caller_is_not_the_tenants(node, started):
    """A connection can be handed on and outlive who made it; before, its pid alone counted."""
    guest = node.tenant("t")
    caller = start(started, "sleep", "60")
    meant = find(caller.pid)
    node.change(guest, parents=frozenset({meant}))
    script = "sleep 60 & echo $!; wait"
    stranger = reuse_pid(started, caller, meant, "sh", "-c", script)
    child = int(line(stranger))
    members = Members()
    members.scan(0, [guest.subject])
    assert members.tenant_of(child) is None


def test_a_handshake_names_a_process_and_all_that_it_starts(node, started):
    guest = node.tenant("t")
    parent = start(started, "sh", "-c", "sleep 60 & echo $!; wait", env={"PATH": "/bin:/usr/bin"})
    child = int(line(parent))
    members = Members()
    members.scan(0, [guest.subject])
    assert members.tenant_of(child) is None
    node.change(guest, handshake=frozenset({find(parent.pid)}))
    members.scan(S, [guest.subject])
    assert members.tenant_of(child) == "t"
    assert members.tenant_of(parent.pid) == "t"


def test_the_cgroup_decides_before_anything_that_a_tenant_can_set(node, started):
    """One that names another tenant in its environment is still the one whose cgroup it is in."""
    own = {line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    mine, other = node.tenant("mine"), node.tenant("other")
    node.change(mine, cgroups=(max(own, key=len),))
    program = start(started, "sleep", "60", env=other.environment)
    members = Members()
    members.scan(0, [mine.subject, other.subject])
    assert members.tenant_of(program.pid) == "mine"
    assert members.tenant_of(os.getpid()) is None, "the agent is nobody's"


def test_another_users_environment_is_not_believed(node, started):
    guest = node.tenant("t")
    program = start(started, "sleep", "60", env=guest.environment)
    members = Members()
    node.change(guest, uid=os.getuid() + 1)
    members.scan(0, [guest.subject])
    assert members.tenant_of(program.pid) is None
    node.change(guest, uid=os.getuid())
    members.scan(S, [guest.subject])
    assert members.tenant_of(program.pid) == "t"


def test_a_pid_that_was_given_anew_is_nobodys(node, started):
    guest = node.tenant("t")
    members = Members()
    program = start(started, "sleep", "60", env=guest.environment)
    meant = find(program.pid)
    members.scan(0, [guest.subject])
    assert members.tenant_of(meant.pid) == "t"
    changes = members.changes
    reuse_pid(started, program, meant)
    members.scan(1 * S, [guest.subject])
    assert members.process(meant.pid) == find(meant.pid) != meant
    assert members.tenant_of(meant.pid) is None
    assert members.changes != changes


def test_a_pid_that_was_given_anew_is_found_even_where_its_folder_looks_the_same(node, started):
    guest = node.tenant("t")
    members = Members()
    program = start(started, "sleep", "60", env=guest.environment)
    members.scan(0, [guest.subject])
    assert members.tenant_of(program.pid) == "t"
    # As if the pid had been another's, who was the tenant's, and started before.
    known = members._known[program.pid]
    known.stat = known.stat.__class__(**{**known.stat.__dict__, "start_ticks": 1})
    node.change(guest, uid=os.getuid() + 1)  # the new one has nothing to do with it
    for look in range(1, 65):
        members.scan(look * S, [guest.subject])
    assert members.tenant_of(program.pid) is None


def test_a_signal_goes_to_the_process_that_was_meant_or_to_nobody(started):
    program = start(started, "sleep", "60")
    meant = find(program.pid)
    assert not send(Process(meant.pid, meant.start_ticks - 1), signal.SIGKILL)
    assert not send(Process(meant.pid, meant.start_ticks + 1), signal.SIGKILL)
    time.sleep(0.05)
    assert is_alive(meant)
    assert send(meant, signal.SIGSTOP)
    assert send(meant, signal.SIGKILL)
    program.wait()
    assert not is_alive(meant)
    assert not send(meant, signal.SIGKILL)


def test_a_recycled_pid_is_not_hit(started):
    first = start(started, "sleep", "60")
    meant = find(first.pid)
    second = reuse_pid(started, first, meant)
    assert not send(meant, signal.SIGKILL)
    assert state_of(second.pid) in {"S", "R"}


def test_a_containers_cgroup_is_told_from_other_peoples():
    one, two = "a" * 64, "0" * 64
    for path, containers in {
        f"/libpod_parent/libpod-{one}": [f"/libpod_parent/libpod-{one}"],
        f"/system.slice/docker-{one}.scope/init": [f"/system.slice/docker-{one}.scope"],
        f"/kubepods/burstable/pod1-2/{one}": [f"/kubepods/burstable/pod1-2/{one}"],
        f"/docker/{one}/docker/{two}/x": [f"/docker/{one}", f"/docker/{one}/docker/{two}"],
        f"/user.slice/{one[:40]}": [],
        f"/user.slice/{one}0": [],
        "/": [],
    }.items():
        assert containers_of(path) == containers


def test_a_tenant_has_as_many_members_as_are_there_and_none_is_not_yet_known(node, started):
    one = node.tenant("one")
    members = Members()
    assert members.count("one") is None
    members.scan(0, [one.subject])
    assert members.count("one") == 0
    programs = [start(started, "sleep", "60", env=one.environment) for _ in range(3)]
    members.scan(S, [one.subject])
    assert members.count("one") == len(members.of("one")) == 3
    programs[0].kill()
    programs[0].wait()
    members.scan(2 * S, [one.subject])
    assert members.count("one") == len(members.of("one")) == 2
    members.scan(3 * S, [])
    assert members.count("one") is None


@pytest.fixture(scope="module")
def long_proc(tmp_path_factory) -> str:
    program = tmp_path_factory.mktemp("long") / "long_proc"
    source = Path(__file__).with_name("programs") / "long_proc.c"
    subprocess.run(["cc", "-o", str(program), str(source)], check=True)
    return str(program)


def test_a_process_that_says_its_environment_is_gigabytes_is_read_no_further_than_a_bound(
    node, started, long_proc
):
    guest = node.tenant("t")
    program = start(started, long_proc)
    if line(program) != "set":
        pytest.skip("this kernel lets nobody say so")
    with Path(f"/proc/{program.pid}/environ").open("rb") as stream:
        assert os.pread(stream.fileno(), 1, 3 << 28), "it is long"
    members = Members()
    tracemalloc.start()
    try:
        began = time.monotonic()
        members.scan(0, [guest.subject])
        processes.environments(processes.TENANT_VARIABLE)
        command_line(program.pid)
        took = time.monotonic() - began
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
        assert took < 5
    finally:
        tracemalloc.stop()
