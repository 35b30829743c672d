"""What honest programs do never trips enforcement. PENSTOCK_SOAK_SECONDS makes it last longer."""

from __future__ import annotations

import os
import signal
import time

import pytest

from penstock_shim import paths
from penstock_shim.pages import QuotaWriter

from .conftest import expect

pytestmark = pytest.mark.timed

SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "8"))
LAUNCHER = str(paths.workload_path("penstock-launcher"))


def test_honest_programs_of_all_kinds_are_left_alone(node):
    long = ("--seconds", SECONDS + 60)
    busy = node.tenant("busy", cores=200)
    busy.launcher("--kernel-us", 300, "--sync-every", 10, *long)
    busy.launcher("--kernel-us", 100, "--threads", 2, "--sync-every", 5, *long)
    # A tenth of the device by kernels of most of a second: each is paid back for long.
    slow = node.tenant("slow", cores=100)
    slow.launcher("--kernel-us", 700_000, "--sync-every", 1, *long)
    copies = node.tenant("copies", cores=50)
    copies.launcher("--kernel-us", 50, "--copy-bytes", 1 << 22, "--sync-every", 1, *long)
    graphs = node.tenant("graphs", cores=100)
    graphs.launcher("--kernel-us", 50, "--graph", 20, "--sync-every", 5, *long)
    full = node.tenant("full", cores=50, memory_mib=3000)
    full.program("fill", "load", 100)
    full.program("init")
    elastic = node.tenant("elastic", cores=100, mode="elastic")
    elastic.launcher("--kernel-us", 300, "--sync-every", 10, *long)
    many = node.tenant("many", cores=100, memory_mib=8192)
    loop = f'while :; do "{LAUNCHER}" --seconds 0.05 --kernel-us 50 & /bin/true; wait; done'
    many.start("sh", "-c", loop)
    many.start("sh", "-c", "while :; do /bin/true; done")
    changing = node.tenant("changing", cores=50, memory_mib=8192)
    changing.program("context", "wait", 1, "again", "load", 50, "wait", 2, "again", "context")
    changing.program("context", "fork", "load", 50)
    paused = node.tenant("paused", cores=50)
    stopped = paused.program("alloc", 100, "load", 50)
    held = node.tenant("held", cores=50)
    held.program("alloc", 100, "load", 50)
    expect(stopped, "alloc 0")
    stopped.send_signal(signal.SIGSTOP)
    with QuotaWriter.open(held.directory / "quota") as writer:
        writer.change(lambda limits: limits.__class__(limits.devices, suspended=True))
    end = time.monotonic() + SECONDS
    node.watch(lambda: time.monotonic() >= end, SECONDS + 60)
    assert {name: acts for name, acts in node.told().items() if acts} == {}
    assert held.limits.suspended, "what an operator did stays"
    assert node.enforcer.foreign == ()
    # All of them did use the device, so that there was something to be wrong about.
    used = {r.pid for r in node.simulated.record(0) if r.busy_ns}
    assert len(used) > 10


def test_a_process_that_ends_and_its_pid_leave_nothing_behind(node):
    """Its slot is free before the device has noticed: no stranger."""
    guest = node.tenant("t", memory_mib=8192)
    end = time.monotonic() + 4
    while time.monotonic() < end:
        programs = [guest.launcher("--seconds", "0.2", "--kernel-us", 50) for _ in range(3)]
        node.watch(lambda these=programs: all(p.poll() is not None for p in these))
        for program in programs:
            assert program.returncode == 0
    assert guest.acts() == []
