"""Recent use: what samples of a usage page say about the last second."""

from __future__ import annotations

from penstock_shim.pages import DeviceUsage, SlotUsage, UsageSnapshot
from penstock_shim.recent import RecentUse

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


def test_what_was_used_before_the_last_second_does_not_count():
    burst = [snapshot(spent_ms=100 * i, launches=i) for i in range(10)]
    use, now = fed(*burst, *[snapshot(spent_ms=900, launches=9)] * 12)
    assert (use.permille, use.is_active(now)) == (0, False)


def test_samples_that_come_too_often_to_be_kept_shorten_the_window():
    use, now = fed(*[snapshot(spent_ms=3 * i, launches=i) for i in range(500)], every_ms=10)
    assert use.permille == 300
    assert use.is_active(now)


def test_a_counter_that_a_tenant_set_back_or_far_ahead_is_kept_within_what_has_passed():
    back, _ = fed(snapshot(spent_ms=900), snapshot(spent_ms=100))
    ahead, _ = fed(snapshot(spent_ms=0), snapshot(spent_ms=10**9))
    assert (back.permille, ahead.permille) == (0, 1000)


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
