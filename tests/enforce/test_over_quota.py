"""Over the quota by the device's own figures, with the shim loaded: another copy of the driver."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from penstock_shim import paths

from .conftest import expect, state_of

pytestmark = pytest.mark.timed


@pytest.fixture
def copy(tmp_path) -> str:
    """The driver's library under another name: its calls are nobody's to gate."""
    made = tmp_path / "notthedriver.so"
    shutil.copy(paths.sim_dir() / "libcuda.so.1", made)
    return str(made)


def test_memory_over_quota_is_terminated_after_its_grace_and_one_within_runs_on(node, copy):
    within = node.tenant("within", memory_mib=2048)
    honest = within.program("alloc", 1400, "load", 200)
    guest = node.tenant("t", memory_mib=2048, grace_s=3)
    process = guest.program("context", "copy", copy, "alloc", 3000)
    first = node.watch(lambda: guest.events("throttle"))[0]
    assert first["kind"] == "memory"
    assert "whose quota is 2Gi" in first["reason"]
    node.watch(lambda: process.poll() is not None)
    assert process.returncode == -15
    (event,) = guest.events("terminate")
    assert event["processes"] == [{"pid": process.pid, "command": event["processes"][0]["command"]}]
    assert str(copy) in event["processes"][0]["command"]
    assert within.acts() == []
    assert honest.poll() is None


def test_cores_over_quota_are_terminated_after_their_grace_and_one_within_runs_on(node, copy):
    within = node.tenant("within", cores=300)
    honest = within.launcher("--kernel-us", 300, "--seconds", 60, "--sync-every", 10)
    guest = node.tenant("t", cores=100, grace_s=3)
    node.watch_for(5)
    process = guest.program("context", "copy", copy, "load", 1000)
    first = node.watch(lambda: guest.events("throttle"))[0]
    assert first["kind"] == "cores"
    assert "10 percent were allowed" in first["reason"]
    assert guest.limits.devices[0].cores_permille < 100
    node.watch(lambda: process.poll() is not None)
    assert process.returncode == -15
    assert guest.events("terminate")[0]["kind"] == "cores"
    assert within.acts() == []
    assert honest.poll() is None


def test_a_policy_of_suspend_sets_the_flag_after_the_grace_and_lifts_it_when_it_is_over(node):
    """A quota that was lowered below what is in use, and raised again."""
    guest = node.tenant("t", memory_mib=2048, measured="suspend", grace_s=1.5)
    process = guest.program("alloc", 1200, "load", 200)
    expect(process, "alloc 0")
    node.watch_for(2)
    assert guest.acts() == []
    whole = guest.subject.grant
    (share,) = whole.devices
    less = dataclasses.replace(whole, devices=(dataclasses.replace(share, memory_bytes=1 << 30),))
    node.change(guest, grant=less)
    node.watch(lambda: guest.limits.suspended)
    assert [e["event"] for e in guest.acts()] == ["throttle", "suspend"]
    assert state_of(process.pid) in {"S", "R"}, "what has the shim needs no SIGSTOP"
    busy_ns = node.busy_ns(process.pid)
    node.watch_for(1.5)
    assert node.busy_ns(process.pid) - busy_ns < 200_000_000
    node.change(guest, grant=whole)
    node.watch(lambda: not guest.limits.suspended)
    assert guest.events("restored")
    assert guest.limits.devices[0].cores_permille == 300
    busy_ns = node.busy_ns(process.pid)
    node.watch(lambda: node.busy_ns(process.pid) > busy_ns)


def test_an_operators_suspension_is_not_lifted_with_ours(node):
    guest = node.tenant("t", memory_mib=2048, measured="suspend", grace_s=1)
    expect(guest.program("alloc", 1200), "alloc 0")
    whole = guest.subject.grant
    (share,) = whole.devices
    less = dataclasses.replace(whole, devices=(dataclasses.replace(share, memory_bytes=1 << 30),))
    node.change(guest, grant=less)
    node.watch(lambda: guest.limits.suspended)
    node.change(guest, grant=whole, suspended=True)
    node.watch(lambda: guest.events("restored"))
    assert guest.limits.suspended


def test_a_hold_is_told_to_whoever_writes_the_page(node):
    guest = node.tenant("t", memory_mib=2048, measured="throttle", grace_s=1)
    expect(guest.program("alloc", 1200), "alloc 0")
    whole = guest.subject.grant
    (share,) = whole.devices
    less = dataclasses.replace(whole, devices=(dataclasses.replace(share, memory_bytes=1 << 30),))
    node.change(guest, grant=less)
    node.watch(lambda: guest.events("throttle"))
    hold = node.enforcer.hold(guest.directory)
    assert hold.cut_permille == {share.uuid: 150}
    full = dataclasses.replace(
        guest.limits,
        devices=(dataclasses.replace(guest.limits.devices[0], cores_permille=300),),
    )
    assert hold.applied(full).devices[0].cores_permille == 150


def test_memory_past_the_shim_within_the_quota_is_said_and_nobody_ends_for_it(node, copy):
    guest = node.tenant("t", memory_mib=4096, grace_s=1)
    process = guest.program("context", "copy", copy, "alloc", 2000)
    event = node.watch(lambda: guest.events("exceeded"))[0]
    assert event["kind"] == "mismatch"
    node.watch_for(3)
    assert process.poll() is None
    assert [e["event"] for e in guest.acts()] == ["exceeded"]
