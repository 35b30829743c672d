"""Faults of other preloaded shims that no other test here looks for (docs/faults-of-peers.md)."""

from __future__ import annotations

import re
import subprocess

import pytest
from tests.memory.support.tenant_programs import MIB, make_tenant
from tests.peers.support.refused_families import ask_for_too_much

from penstock.bench.quota import Workload
from penstock.bench.stage import Stage, windows
from penstock_shim import paths, simulator

pytestmark = pytest.mark.timed

LONG_S = 120


def test_a_loop_of_large_kernels_each_waited_for_is_throttled():
    """A bucket that is checked before it is charged would let each of them pass."""
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 20)
        stage.start(tenant, Workload(20_000, sync_every=1).arguments(LONG_S))
        stage.wait_until_busy(["tenant"])
        stage.watch(0.5)
        percents = [window.percent for window in windows(stage.watch(2.5), "tenant")]
        assert max(percents) <= 25


def test_eight_processes_that_begin_at_once_have_one_burst_together():
    with Stage("h200") as stage:
        tenant = stage.tenant("tenant", 10)
        for _ in range(8):
            stage.start(tenant, Workload(1000).arguments(LONG_S))
        stage.wait_until_busy(["tenant"])
        samples = stage.watch(1.0)
        seconds = (samples[-1].at_ns - samples[0].at_ns) / 1e9
        used_ms = (samples[-1].busy_ns["tenant"] - samples[0].busy_ns["tenant"]) / 1e6
        # Eight bursts of 2 ms, each of unknown cost, would be a few ms more; eight shares, 800.
        assert used_ms <= 1000 * 0.10 * seconds + 60


def test_the_shim_exports_nothing_but_the_drivers_names_and_two_doors():
    """No `curl_*`, no `cublas*`, and no `dlsym` or `dlvsym` of its own."""
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", paths.so_path()], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].partition("@")[0] for line in lines.splitlines()}
    foreign = {name for name in names if not re.fullmatch(r"cu([A-Z]|dbg)\w*", name)}
    assert len(names) > 600
    assert {"dlopen", "dlmopen"} <= foreign
    assert all(n in {"dlopen", "dlmopen"} or n.startswith("penstock_") for n in foreign), foreign


def test_a_refused_allocation_never_reaches_the_driver(tmp_path):
    """The driver's allocation calls would hang, but the refusals return."""
    machine = tmp_path / "machine"
    with simulator.create_machine(machine, "h200") as opened:
        tenant = make_tenant(tmp_path / "tenant", machine, 64 * MIB)
        with tenant.start(ask_for_too_much) as program:
            assert program.stdout.readline() == "ready\n"
            for call in ("cuMemAlloc", "cuMemAllocAsync", "cuMemCreate", "cuMemAllocManaged"):
                opened.inject("hang", call=call)
            out, _ = program.communicate("go\n", timeout=60)
        tenant.quota.close()
    assert out == "2 2 2 2\n"
    assert program.returncode == 0
