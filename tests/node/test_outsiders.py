"""Processes of other pid namespaces are taken for dead when they are, and not before."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.memory.support import tenant_programs

from penstock.node.enforcement.process import read_stat
from penstock.node.supervision.pid_namespaces import NamespacedProcesses
from penstock_shim import pages, simulator

HOLD = """
import ctypes, sys, threading
cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
print(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(6 << 20)), flush=True)
input()
if "go on" in sys.argv:
    threading.Thread(target=input).start()
    ctypes.CDLL(None).syscall(ctypes.c_long(60), ctypes.c_long(0))  # exit, of this thread alone
"""  # noqa: E501
SIX_MIB = 6 << 20


@pytest.fixture
def tenant(tmp_path):
    simulator.create_machine(tmp_path / "machine", "h200").close()
    tenant = tenant_programs.make_tenant(tmp_path / "tenant", tmp_path / "machine")
    yield tenant
    tenant.quota.close()


@pytest.fixture
def hold(tenant):
    """A program in a pid namespace of its own that holds 6 MiB; killed at the end."""
    started = []

    def start(*before: str, then: str = "end"):
        process = subprocess.Popen(
            [*before, sys.executable, "-c", HOLD, then],
            env=tenant.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "0\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def slots(tenant):
    return pages.read_usage(tenant.folder / "usage").slots


def test_processes_of_the_own_namespace_are_left_to_themselves(tenant, hold):
    namespaced = NamespacedProcesses()
    process = hold()
    assert namespaced.dead(slots(tenant)) == []
    process.kill()
    process.wait()
    assert namespaced.dead(slots(tenant)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a new pid namespace needs root")
def test_a_killed_process_of_another_namespace_gives_its_charges_back(tenant, hold):
    namespaced = NamespacedProcesses(sees_all=False)
    hold()
    process = hold("unshare", "--pid", "--fork", "--kill-child")
    assert namespaced.dead(slots(tenant)) == []  # seen alive
    tenant.reap()
    assert tenant.charged() == 2 * SIX_MIB
    process.kill()
    process.wait()
    [dead] = wait_until(lambda: namespaced.dead(slots(tenant)))
    tenant.quota.mark_dead(dead.slot, dead.owner)
    tenant.reap()
    assert tenant.charged() == SIX_MIB


@pytest.mark.skipif(os.geteuid() != 0, reason="a new pid namespace needs root")
def test_who_goes_on_after_its_first_thread_ended_keeps_what_it_holds(tenant, hold):
    namespaced = NamespacedProcesses(sees_all=False)
    process = hold("unshare", "--pid", "--fork", "--kill-child", then="go on")
    assert namespaced.dead(slots(tenant)) == []  # seen alive
    process.stdin.write("\n")
    process.stdin.flush()
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    wait_until(lambda: read_stat(int(child)).leader_has_ended)
    assert namespaced.dead(slots(tenant)) == []
    process.kill()
    process.wait()
    wait_until(lambda: namespaced.dead(slots(tenant)))


@pytest.mark.skipif(os.geteuid() != 0, reason="a new pid namespace needs root")
def test_of_several_that_end_together_none_waits_for_a_scan_of_its_own(tenant, hold):
    """Each tenant's supervisor asks for its own, and one of them alone gets to scan."""
    namespaced = NamespacedProcesses(sees_all=False, scan_period_ns=10**9)
    processes = [hold("unshare", "--pid", "--fork", "--kill-child") for _ in range(3)]
    held = slots(tenant)
    assert [namespaced.dead([slot], 10**9) for slot in held] == [[], [], []]  # seen alive
    for process in processes:
        process.kill()
        process.wait()
    wait_until(lambda: not {slot.pid_namespace for slot in held} & namespaces_with_processes())
    assert namespaced.dead([held[0]], 10**12) == [held[0]]
    assert [namespaced.dead([slot], 0) for slot in held] == [[slot] for slot in held]


@pytest.mark.skipif(os.geteuid() != 0, reason="a new pid namespace needs root")
def test_who_was_never_seen_counts_only_where_all_can_be_seen_or_who_shook_hands(tenant, hold):
    process = hold("unshare", "--pid", "--fork", "--kill-child")
    process.kill()
    process.wait()
    assert NamespacedProcesses(sees_all=False).dead(slots(tenant)) == []
    wait_until(lambda: NamespacedProcesses(sees_all=True).dead(slots(tenant)))
    held = slots(tenant)
    met = NamespacedProcesses(sees_all=False)
    met.add_visible(held[0].owner)
    assert met.dead(held) == list(held)


def namespaces_with_processes():
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.add((process / "ns" / "pid").stat().st_ino)
    return found


def wait_until(condition, timeout_s=20.0):
    """The first true value: the child of a killed `unshare` ends a moment later."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
    raise AssertionError("the killed process is still taken for alive")
