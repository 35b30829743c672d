"""Recent use: what samples of a usage page say about the last second."""

from __future__ import annotations

from penstock.node.use import RecentUse
from penstock_shim.pages import DeviceUsage, SlotUsage, UsageSnapshot

MS = 1_000_000


def snapshot(*, spent_ms=0, launches=0, waits=0, in_flight=0):
    device = DeviceUsage(
        total_bytes=0, peak_bytes=0, refusals=0, refused_bytes=0, origin_ns=1,
        spent_ns=spent_ms * MS, closed=False, launches=launches, waits=waits, waited_ns=0, debts=0,
        copied_bytes=0,
        copies=0,
        host_functions=0,
    )  # fmt: skip
    slot = SlotUsage(
        slot=0, state="live", owner=1, pid=1, pid_namespace=None, start_ticks=0, command="x",
        claimed_ns=0, charged_bytes=(0,), estimate_ns=(0,), submitted=(in_flight,), done=(0,),
    )  # fmt: skip
    return UsageSnapshot(devices=(device,), slots=(slot,))


def fed(*samples, every_ms=100):
    use = RecentUse()
    for index, sample in enumerate(samples):
        use.add((index + 1) * every_ms * MS, sample, 0)
    return use, len(samples) * every_ms * MS


def test_use_is_the_share_charged_over_the_last_second():
    busy = [snapshot(spent_ms=30 * i, launches=i) for i in range(20)]
    use, now = fed(*busy)
    assert use.permille == 300
    assert use.is_active(now)
    assert len(use.samples) <= 12


def test_a_tenant_that_never_worked_is_idle():
    use, now = fed(*[snapshot()] * 5)
    assert (use.permille, use.is_active(now), use.is_asking(now)) == (0, False, False)


def test_a_tenant_that_just_began_asks_before_its_use_says_anything():
    use, now = fed(snapshot(), snapshot(in_flight=1))
    assert use.is_asking(now)
    steady, now = fed(*[snapshot(spent_ms=10 * i, launches=i) for i in range(30)])
    assert not steady.is_asking(now)


def test_a_wait_counts_as_asking_for_longer_than_use_is_averaged():
    before = [snapshot(spent_ms=10 * i, launches=i) for i in range(30)]
    use, now = fed(*before, snapshot(spent_ms=300, launches=30, waits=1))
    assert use.is_asking(now)
    assert use.is_asking(now + 1500 * MS)
    assert not use.is_asking(now + 2500 * MS)
