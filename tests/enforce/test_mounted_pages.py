"""Processes in containers, and forged ones: a mounted page tells whose they are."""

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
from tests.agent.conftest import wait_until
from tests.agent.support.programs import open_folder
from tests.enforce.support.processes import line, start

from penstock.node.enforcement.members import Members
from penstock.node.enforcement.process import read_stat
from penstock.node.tenants import tenant_processes as processes
from penstock.node.tenants.mount_lookup import mounted_pages, page_of

S = 1_000_000_000
NOBODY = 65534


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


# In a user and mount namespace of one's own anybody may put this where a container has its page.
FORGED = {
    "link": "mkdir /run/penstock-tenant; ln -s $1/usage /run/penstock-tenant/usage",
    "folder": "ln -s $1 /run/penstock-tenant",
    "mount": "mkdir /run/penstock-tenant; mount --bind $1 /run/penstock-tenant",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="has tenants of another user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_nobody_is_taken_for_another_tenants_by_what_they_put_in_a_pages_place(node, started, mode):
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    tried = subprocess.run(
        [*unshare, "true"], user=NOBODY, group=NOBODY, extra_groups=[], check=False
    )
    if tried.returncode:
        pytest.skip("users have no namespaces of their own here")
    open_folder(node.state.directory)
    node.state.tenants.chmod(0o711)
    victim, own = node.tenant("victim"), node.tenant("own")
    victim.directory.chmod(mode)
    own.directory.chmod(0o755)
    os.chown(own.directory / "usage", NOBODY, -1)
    node.change(own, uid=NOBODY)

    def in_a_namespace(directory: Path, way: str, env) -> subprocess.Popen:
        script = f"mount -t tmpfs x /run && {way} && echo ready; exec sleep 60"
        program = subprocess.Popen(
            [*unshare, "sh", "-c", script, "sh", str(directory)],
            user=NOBODY, group=NOBODY, extra_groups=[], env=env, stdout=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        started.append(program)
        assert line(program) == "ready"
        return program

    bare = {"PATH": os.environ["PATH"]}
    forged = [in_a_namespace(victim.directory, way, bare) for way in FORGED.values()]
    parent = in_a_namespace(victim.directory, FORGED["mount"], own.environment)
    mine = in_a_namespace(own.directory, FORGED["mount"], bare)
    page, theirs = victim.directory / "usage", own.directory / "usage"
    for program in (*forged, parent):  # with root's rights the page is there
        seen = Path(f"/proc/{program.pid}/root/run/penstock-tenant/usage")
        assert (seen.is_symlink() and "victim" in str(seen.readlink())) or seen.samefile(page)
        found = mounted_pages(program.pid)
        assert found is None or not found.tells_of(page_of(page))
    found = mounted_pages(mine.pid)
    assert found.tells_of(page_of(theirs))
    assert not found.by_root
    members = Members()
    for look in range(2):
        members.scan(look * S, [victim.subject, own.subject])
    assert [members.tenant_of(program.pid) for program in forged] == [None] * len(forged)
    assert members.tenant_of(parent.pid) == "own"
    assert members.tenant_of(mine.pid) == "own", "whose page it is may mount it"
    assert processes.members(victim.directory) == []
    assert mine.pid in processes.members(own.directory)


def test_who_descends_from_a_tenant_is_its_own_whatever_page_is_mounted_there(node, started):
    """By root too: `penstock run` of a runtime whose container got the device of another tenant."""
    first, second = node.tenant("first"), node.tenant("second")
    script = (
        "mount -t tmpfs x /run && mkdir /run/penstock-tenant && "
        "mount --bind $1 /run/penstock-tenant && echo ready; exec sleep 60"
    )
    program = start(
        started, "sh", "-c",
        "unshare --mount env -u PENSTOCK_TENANT_DIR -u LD_PRELOAD sh -c \"$0\" sh $1; wait",
        script, str(second.directory), env=first.environment,
    )  # fmt: skip
    if line(program) != "ready":
        pytest.skip("nothing can be mounted here")
    members = Members()
    members.scan(0, [first.subject, second.subject])
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    assert mounted_pages(int(children[0])).by_root
    assert [members.tenant_of(int(one)) for one in children] == ["first"]


# Its first thread ends when it is told to, another goes on.
GOES_ON = """
import ctypes, signal, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
threading.Thread(target=time.sleep, args=[600]).start()
print("on", flush=True)
signal.sigwait({signal.SIGUSR1})
ctypes.CDLL(None).syscall(ctypes.c_long(60), ctypes.c_long(0))
"""


def test_a_page_is_found_where_the_first_thread_of_a_process_has_ended(node, started):
    directory = node.tenant("one").directory
    script = (
        "mount -t tmpfs x /run && mkdir /run/penstock-tenant && "
        'mount --bind "$0" /run/penstock-tenant && exec "$@"'
    )
    words = ["unshare", "--mount", "sh", "-c", script, str(directory)]
    program = start(started, *words, sys.executable, "-c", GOES_ON)
    if line(program) != "on":
        pytest.skip("nothing can be mounted here")
    program.send_signal(signal.SIGUSR1)
    wait_until(lambda: read_stat(program.pid).leader_has_ended)
    assert mounted_pages(program.pid).tells_of(page_of(directory / "usage"))
    assert program.pid in processes.members(directory)
