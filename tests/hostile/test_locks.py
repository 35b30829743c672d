"""Kernel locks that a user holds for ever delay nobody but that user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.agent.conftest import wait_until
from tests.agent.support.programs import backlogged, open_to_nobody

from penstock.devices.aside import Aside
from penstock.node.enforcement.process import Process, command_line, is_alive, why_unshimmed
from penstock.node.tenants.lock import take
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE, environments, started_with

from .conftest import NOBODY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
# Orders and rounds take milliseconds; other tests keep the processors busy.
BOUND_S = 1.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def node(make_node):
    """An agent with a co-tenant's program at work."""
    node = make_node()
    open_to_nobody(node)
    granted = node.tenant("good", cores=300)
    node.launch(granted, *backlogged(60))
    wait_until(lambda: node.usage("good").devices[0].launches > 500)
    return node


GRANT = """
import os, pathlib, sys
from tests.agent.conftest import request
from penstock.node.rpc import AgentClient
os.setgid({uid}), os.setuid({uid})
with AgentClient.local(pathlib.Path(sys.argv[1])) as agent:
    agent.grant(request("theirs", cores=100))
"""


def tenant_of_nobody(node) -> None:
    """A tenant "theirs" of the hostile user."""
    command = [sys.executable, "-c", GRANT.format(uid=NOBODY), str(node.socket)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def check_goes_on(node, seconds: float = 3.0) -> None:
    """Requests, reconcile loop and enforcement continue; the agent can be killed and restarted."""
    with node.client() as agent:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            before_s = time.monotonic()
            agent.node()
            agent.suspend("good")
            agent.resume("good")
            assert time.monotonic() - before_s < BOUND_S
            time.sleep(0.1)
        assert agent.node().slowest_round.ToNanoseconds() < BOUND_S * 1e9
        members = agent.tenants()[0].members
    node.launch(node.tenant("later", cores=100), *backlogged(60))
    with node.client() as agent:
        wait_until(lambda: [one.members for one in agent.tenants()] == [members, 1])
        agent.revoke("later", 0)
    node.process.kill()
    assert node.process.wait(5) == -signal.SIGKILL
    node.process.stderr.close()
    node.start()
    with node.client() as agent:
        wait_until(lambda: agent.tenants()[0].members == members)
    assert node.stop() == 0


@pytest.mark.parametrize("way", ["memory", "exec"])
def test_a_process_that_cannot_be_read_holds_up_neither_rounds_nor_orders(node, holds, way):
    for _ in range(3):
        holds(way)
    check_goes_on(node)


def test_more_processes_that_cannot_be_read_than_wait_at_once_hold_up_nobody(node, holds):
    """A helper process waits for each in a thread; out of threads, that process is abandoned."""
    holder, _ = holds("exec", 150)
    check_goes_on(node)
    assert holder.poll() is None


@pytest.mark.parametrize("way", ["memory", "exec"])
def test_a_process_that_cannot_be_read_is_neither_dead_nor_any_tenants(holds, way):
    program, _ = holds(way)
    pids = [program.pid, *_children(program.pid)]
    begun_s = time.monotonic()
    if way == "exec":  # when it began cannot be told
        wait_until(lambda: is_alive(Process(pids[-1], 1)))
    for pid in pids:
        started_with(pid, TENANT_VARIABLE)
        assert command_line(pid)
        assert why_unshimmed(pid)
    environments(TENANT_VARIABLE)
    assert time.monotonic() - begun_s < 3 * BOUND_S


def test_a_directory_that_a_user_enters_cannot_be_listed(node, holds):
    """A user who lists it into memory of a hanging file system blocks file creation there."""
    tenant_of_nobody(node)
    for folder in (node.state, node.state / "tenants", node.state / "tenants" / "theirs"):
        program, said = holds("folder", folder)
        assert "Permission denied" in said
        program.kill()
    check_goes_on_without(node, "theirs")


def check_goes_on_without(node, name: str) -> None:
    with node.client() as agent:
        agent.revoke(name, 0)
    check_goes_on(node)


def test_a_page_that_its_owner_holds_is_cut_and_removed_later(node, holds):
    tenant_of_nobody(node)
    page = node.state / "tenants" / "theirs" / "usage"
    with page.open("r+b") as stream:
        stream.truncate(64 << 20)
    program, _ = holds("file", page)
    wait_until(lambda: any(one["event"] == "page-grown" for one in node.events("theirs")))
    check_goes_on_without(node, "theirs")
    left = list((node.state / "tenants").glob(".gone-theirs-*"))
    assert left  # nobody gets its name, and nobody waits for it
    os.killpg(program.pid, signal.SIGKILL)
    node.start()
    node.tenant("another", cores=100)  # a grant removes what earlier tenants left
    wait_until(lambda: not left[0].exists())


def test_the_agents_sockets_accept_no_files(node, holds):
    """The holder of the last reference waits for the file system: that would be the agent."""
    tenant_of_nobody(node)
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 16):
        pytest.skip("before Linux 6.16 a socket takes files from everybody")
    for path in (node.socket, node.state / "tenants" / "theirs" / "handshake"):
        said = holds("sends", path)[1]
        assert "sent" not in said
        assert "Operation not permitted" in said
    check_goes_on_without(node, "theirs")


def test_a_lock_of_a_killed_process_that_hangs_is_free(tmp_path, holds):
    """The lock of a process that only waits is not free."""
    page = tmp_path / "page"
    page.touch()
    page.chmod(0o666)
    program, _ = holds("file", page)
    script = (
        "import os, sys, threading, time; from penstock.node.tenants.lock import take; "
        "take(sys.argv[1]);"
        "threading.Thread(target=os.unlink, args=[sys.argv[2]]).start();"
        "time.sleep(0.3); print('taken', flush=True); time.sleep(60)"
    )
    script = script.replace("take(sys.argv[1])", "take(__import__('pathlib').Path(sys.argv[1]))")
    lock = tmp_path / "a" / "lock"
    lock.parent.mkdir()
    command = [sys.executable, "-c", script, str(lock), str(page)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "taken\n"
        with pytest.raises(BlockingIOError):
            take(lock)
        holder.kill()
        descriptor = wait_until(lambda: _taken(lock), 5)
        assert holder.poll() is None  # it hangs, and has its own lock on what was there
        with pytest.raises(BlockingIOError):
            take(lock)
        os.close(descriptor)
        os.close(take(lock))
        os.killpg(program.pid, signal.SIGKILL)  # or it hangs on


def test_of_many_that_take_a_dead_processes_lock_one_gets_it(tmp_path):
    """Taken by many at once, it is never held twice."""
    lock, held, most = tmp_path / "lock", [], []

    def try_it() -> None:
        for _ in range(200):
            descriptor = _taken(lock)
            if descriptor:
                held.append(1)
                most.append(len(held))
                held.pop()
                os.close(descriptor)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1


def test_work_in_an_aside_process_is_abandoned_with_that_process(tmp_path, holds):
    """Stuck threads are left behind, up to their limit; then calls fail at once."""
    page = tmp_path / "page"
    page.touch()
    page.chmod(0o666)
    program, _ = holds("file", page)
    aside = Aside()
    try:
        for _ in range(4):
            with pytest.raises(TimeoutError):
                aside.remove(page)
        begun_s = time.monotonic()
        aside.close()
        assert time.monotonic() - begun_s < BOUND_S
        assert aside.left() in {1, 2}  # a helper that is silent on a busy machine is given up too
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        wait_until(lambda: aside.left() == 0)


def _taken(lock) -> int:
    try:
        return take(lock)
    except BlockingIOError:
        return 0


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as stream:  # noqa: PTH123
        return [int(word) for word in stream.read().split()]
