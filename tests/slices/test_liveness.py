"""What becomes of tenants when somebody dies, lies or changes while time slices are given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from penstock.bench.quota import Workload
from penstock_shim.pages import PageError, page_bytes
from penstock_shim.time_slices import TimeSlices

pytestmark = pytest.mark.timed

LONG_S = 120
BACKLOGGED = Workload(500).arguments(LONG_S)
SCHEDULER = """
import sys, time
from pathlib import Path
from penstock_shim.time_slices import TimeSlices
slices = TimeSlices()
for directory in sys.argv[1:]:
    slices.add(Path(directory).name, Path(directory))
while True:
    time.sleep(0.05)
    print(sum(device.slices for device in slices.devices().values()), flush=True)
"""


def used_ns(stage, name):
    return stage.sample().busy_ns.get(name, 0)


def pair(stage, *cores):
    return [stage.tenant(f"t{i}", share, sharers=len(cores)) for i, share in enumerate(cores)]


def percent(stage, names, seconds):
    samples = stage.watch(seconds)
    return percent_between(samples[0], samples[-1], names)


def percent_between(first, last, names):
    whole_ns = last.at_ns - first.at_ns
    return [100 * (last.busy_ns[name] - first.busy_ns[name]) / whole_ns for name in names]


def scheduler_of(tenants):
    scheduler = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER, *(str(tenant.directory) for tenant in tenants)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in scheduler.stdout:
        if int(line) > 5:
            return scheduler
    raise AssertionError("the scheduler ended")


def test_tenants_continue_when_the_scheduler_is_killed_in_the_middle_of_a_slice(stage):
    tenants = pair(stage, 50, 30)
    for tenant in tenants:
        stage.start(tenant, BACKLOGGED)
    stage.wait_until_busy(["t0", "t1"], 30)
    for _ in range(3):
        scheduler = scheduler_of(tenants)
        scheduler.kill()
        scheduler.communicate()
        before = [used_ns(stage, t.name) for t in tenants]
        stage.watch(0.5)
        assert all(used_ns(stage, t.name) > b for t, b in zip(tenants, before, strict=True))
    shares = percent(stage, ["t0", "t1"], 2)
    assert 44 <= shares[0] <= 56
    assert 24 <= shares[1] <= 36


def test_the_next_scheduler_continues_where_one_was_killed(stage):
    tenants = pair(stage, 50, 30)
    for tenant in tenants:
        stage.start(tenant, BACKLOGGED)
    stage.wait_until_busy(["t0", "t1"], 30)
    scheduler = scheduler_of(tenants)
    scheduler.kill()
    scheduler.communicate()
    with TimeSlices() as slices:
        for tenant in tenants:
            slices.add(tenant.name, tenant.directory)
        stage.watch(1)
        shares = percent(stage, ["t0", "t1"], 2)
    assert 46 <= shares[0] <= 52
    assert 26 <= shares[1] <= 32


def test_a_tenant_killed_in_its_slice_holds_nobody_up(stage, wait_until):
    tenants = pair(stage, 40, 40)
    with TimeSlices() as slices:
        for tenant in tenants:
            slices.add(tenant.name, tenant.directory)
        programs = [stage.start(tenant, BACKLOGGED) for tenant in tenants]
        stage.wait_until_busy(["t0", "t1"], 30)
        wait_until(lambda: next(iter(slices.devices().values())).slices > 5, "time slices")
        stage.kill(programs[0])
        before = used_ns(stage, "t1")
        stage.watch(0.5)
        assert used_ns(stage, "t1") - before > 0.5e9 * 0.25
        wait_until(
            lambda: not next(iter(slices.devices().values())).handed_out, "no time slices", 5
        )


@pytest.mark.parametrize("garbage", [b"\xff", b"\x55", b""], ids=["ones", "bits", "truncated"])
def test_a_tenant_that_spoils_its_usage_page_harms_itself_alone(stage, garbage):
    bad, good = pair(stage, 40, 40)
    with TimeSlices() as slices:
        for tenant in (bad, good):
            slices.add(tenant.name, tenant.directory)
        stage.start(good, BACKLOGGED)
        program = stage.start(bad, BACKLOGGED)
        stage.wait_until_busy(["t0", "t1"], 30)
        stage.watch(0.5)
        program.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.pid, os.WSTOPPED | os.WNOWAIT)
        path = bad.directory / "usage"
        if garbage:
            path.write_bytes(garbage * page_bytes())
        else:
            os.truncate(path, 0)
        # Not with stage.watch(), which takes the end of a program for a failure: the device lets a
        # stopped program finish what it holds its lock for, and one without its page ends there.
        time.sleep(0.5)
        first = stage.sample()
        time.sleep(2)
        (share,) = percent_between(first, stage.sample(), ["t1"])
        stage.kill(program)
        assert 36 <= share <= 42


def test_a_suspended_tenant_gets_no_slices_and_its_neighbour_keeps_its_share(stage):
    first, second = pair(stage, 40, 40)
    with TimeSlices() as slices:
        for tenant in (first, second):
            slices.add(tenant.name, tenant.directory)
            stage.start(tenant, BACKLOGGED)
        stage.wait_until_busy(["t0", "t1"], 30)
        first.change(suspended=True)
        stage.watch(0.5)
        shares = percent(stage, ["t0", "t1"], 1)
        assert shares[0] == 0
        assert 35 <= shares[1] <= 45
        first.change(suspended=False)
        stage.watch(0.5)
        assert percent(stage, ["t0"], 1)[0] > 30


def test_tenants_come_and_go_while_slices_are_given(stage, wait_until):
    tenants = pair(stage, 30, 30, 30)
    with TimeSlices() as slices:
        for tenant in tenants:
            stage.start(tenant, BACKLOGGED)
        stage.wait_until_busy(["t0", "t1", "t2"], 30)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for tenant in tenants:
                slices.add(tenant.name, tenant.directory)
            time.sleep(0.05)
            assert slices.remove("t1")
        assert not slices.remove("t1")
        assert slices.tenants() == {"t0", "t2"}
        before = [used_ns(stage, tenant.name) for tenant in tenants]
        stage.watch(1)
        after = [used_ns(stage, tenant.name) for tenant in tenants]
        assert all(b > a for a, b in zip(before, after, strict=True))


def test_pages_that_are_none_are_refused(stage, tmp_path):
    with TimeSlices() as slices:
        with pytest.raises(PageError):
            slices.add("nobody", tmp_path)
        (tenant,) = pair(stage, 30)
        (tenant.directory / "usage").write_bytes(b"no page")
        with pytest.raises(PageError):
            slices.add("t0", tenant.directory)
        assert slices.tenants() == frozenset()
    with pytest.raises(ValueError, match="stopped"):
        slices.add("late", tmp_path)
