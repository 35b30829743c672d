"""Who belongs to a tenant, by the kernel alone; and signals that never hit anybody else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from penstock.enforce.cgroup import containers_of
from penstock.enforce.members import Members
from penstock.enforce.process import Process, find, is_alive, read_stat, send

from .conftest import state_of

S = 1_000_000_000


@pytest.fixture
def started():
    """Processes to be ended with the test."""
    programs: list[subprocess.Popen] = []
    yield programs
    for program in programs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        if program.stdout:
            program.stdout.close()


def start(started, *command: str, env=None) -> subprocess.Popen:
    program = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    started.append(program)
    deadline = time.monotonic() + 10
    # In the middle of its exec a process has no environment.
    while not Path(f"/proc/{program.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.001)
    return program


def line(program) -> str:
    return program.stdout.readline().strip()


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
    node.change(guest, parents=frozenset({parent.pid}))
    members = Members()
    members.scan(0, [guest.subject])
    assert members.tenant_of(child) == "t"
    assert members.tenant_of(parent.pid) is None


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
    members.scan(0, [guest.subject])
    assert members.tenant_of(program.pid) == "t"
    # As if the pid had been another's, who was the tenant's, and started before.
    known = members._known[program.pid]
    known.stat = known.stat.__class__(**{**known.stat.__dict__, "start_ticks": 1})
    node.change(guest, uid=os.getuid() + 1)  # the new one has nothing to do with it
    for look in range(1, 9):
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
    """A pid is given again on purpose, as the kernel does when it has come round."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not os.access(last, os.W_OK):
        pytest.skip("pids cannot be chosen here")
    first = start(started, "sleep", "60")
    meant = find(first.pid)
    first.kill()
    first.wait()
    time.sleep(0.05)  # start times are told in hundredths of a second
    for _ in range(50):
        with contextlib.suppress(OSError):
            last.write_text(str(meant.pid - 1))
        second = start(started, "sleep", "60")
        if second.pid == meant.pid:
            break
        second.kill()
    else:
        pytest.skip("the pid was never given again")
    if read_stat(second.pid).start_ticks == meant.start_ticks:
        pytest.skip("both began within a hundredth of a second")
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


@pytest.fixture
def cgroup():
    """One named as runtimes name a container's."""
    base = next((f for f in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids"))
                 if (f / "cgroup.procs").exists()), None)  # fmt: skip
    made = base / f"libpod-{uuid.uuid4().hex * 2}" if base else None
    try:
        made.mkdir()
    except (AttributeError, OSError):
        pytest.skip("no cgroup can be made here")
    yield made
    while made.exists():
        with contextlib.suppress(OSError):
            made.rmdir()


def test_what_is_in_a_container_with_the_tenants_page_is_the_tenants_without_it_too(
    cgroup, node, started
):
    guest = node.tenant("t")
    inside = "mkdir -p /run/penstock-tenant; mount --bind $1 /run/penstock-tenant; exec sleep 60"
    bare = {"PATH": os.environ["PATH"]}
    script = f"mount -t tmpfs x /run; {inside}"
    mounted = start(
        started, "unshare", "--mount", "sh", "-c", script, "sh", str(guest.directory), env=bare
    )
    page = Path(f"/proc/{mounted.pid}/root/run/penstock-tenant/usage")
    lost = start(started, "sleep", "60", env=bare)
    try:
        deadline = time.monotonic() + 10
        while not page.exists():
            assert time.monotonic() < deadline, "nothing can be mounted here"
            time.sleep(0.01)
        for program in (mounted, lost):
            (cgroup / "cgroup.procs").write_text(str(program.pid))
        for mode, owner in ((0o755, None), (0o700, "t")):
            guest.directory.chmod(mode)  # open: its user can mount it where strangers are
            members = Members()
            for look in range(2):
                members.scan(look * S, [guest.subject])
            assert members.tenant_of(mounted.pid) == "t"
            assert members.tenant_of(lost.pid) == owner
    finally:
        for program in (mounted, lost):
            program.kill()
            program.wait()
