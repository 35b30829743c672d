"""When a device may be given work, from what its driver reports."""

from __future__ import annotations

import pytest

from penstock.devices.backends.xid_health import APPLICATION_XIDS, SETTLED_NS, HealthWatch, Signs

S = 10**9


def states(*looks):
    """The states after each look; a look is (second, signs)."""
    watch = HealthWatch()
    return [watch.look(int(at * S), signs).state for at, signs in looks]


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS))
def test_a_programs_xid_leaves_a_device_healthy(xid):
    assert states((0, Signs(xids=[xid])), (1, Signs(xids=[xid], action=""))) == ["ok", "ok"]


def test_with_an_old_driver_a_reset_is_recognized_by_an_energy_counter_that_restarts():
    before, more, anew = (Signs(energy_millijoules=e) for e in (500, 600, 7))
    assert states(
        (0, before), (1, Signs(xids=[48], energy_millijoules=550)), (60, more), (3600, more),
        (3601, anew), (3602, anew),
    ) == ["ok", "unhealthy", "unhealthy", "unhealthy", "ok", "ok"]  # fmt: skip


def test_a_device_that_was_lost_and_returns_counts_as_reset():
    assert states((0, Signs(xids=[79])), (1, Signs(lost="gone")), (9, Signs())) == [
        "unhealthy", "lost", "ok",
    ]  # fmt: skip


def test_a_device_that_returns_and_still_asks_for_a_reset_is_unhealthy():
    looks = (Signs(lost="gone"), Signs(action="a GPU reset"), Signs(action=""))
    assert states(*enumerate(looks)) == ["lost", "unhealthy", "ok"]


def test_a_driver_that_asks_for_no_reset_is_believed_after_a_while():
    settled = SETTLED_NS / S
    assert states(
        (0, Signs(xids=[94], action="")), (settled / 2, Signs(action="")),
        (settled + 1, Signs(action="")),
    ) == ["unhealthy", "unhealthy", "ok"]  # fmt: skip


def test_the_reason_names_the_errors_and_what_the_driver_wants():
    watch = HealthWatch()
    health = watch.look(0, Signs(xids=[13, 79, 79, 1234], action="a GPU reset"))
    assert str(health) == (
        "unhealthy: the driver asks for a GPU reset after XID 79 (the GPU has fallen off the bus), "
        "XID 1234"
    )
    assert "XID 13 " not in str(health)
    assert "after XID 79" in watch.look(S, Signs(lost="GPU is lost")).reason


def test_the_record_of_a_storm_of_errors_stays_short():
    watch = HealthWatch()
    for second in range(1000):
        health = watch.look(second * S, Signs(xids=range(200, 264)))
    assert len(health.reason) < 200
