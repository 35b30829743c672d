"""Old amounts become coarser, the oldest go, and no clock can make anything old."""

from __future__ import annotations

import dataclasses

import pytest
from tests.meter.support.metering import START, S, another, later, places, reading, stored

from penstock.model import PenstockError
from penstock.node.metering.meter import Meter
from penstock.node.metering.retention import Retention, roll_up
from penstock.node.metering.store import FILE, Store


def meter_hours(directory, hours: int, *, jump_at: int = -1, jump_s: float = 0) -> None:
    """A tenant uses half the device for so long; one reading every ten seconds' worth of rows."""
    meter = Meter(directory, at=START)
    at = START
    for minute in range(60 * hours + 1):
        meter.observe(at, [reading(30 * minute)])
        at = later(60, at, jump_s=jump_s if minute == jump_at else 0)
    assert meter.close(at, wait_s=10)


def test_minutes_become_hours_and_hours_days_and_sums_stay(tmp_path):
    meter_hours(tmp_path, 72)
    with Store(tmp_path / FILE) as store:
        roll_up(store, Retention(minutes=60, hours=24, days=400))
    found = places(tmp_path)
    assert sum(charged for _, _, charged in found) == 72 * 1800 * S
    counts = {unit: sum(1 for one, *_ in found if one == unit) for unit in (60, 3600, 86400)}
    assert counts[60] == 60
    assert counts[3600] == 24
    assert 2 <= counts[86400] <= 4
    before = places(tmp_path)
    with Store(tmp_path / FILE) as store:
        roll_up(store, Retention(minutes=60, hours=24, days=400))
    assert places(tmp_path) == before


def test_days_beyond_the_last_that_are_kept_are_deleted_and_living_tenants_known(tmp_path):
    meter_hours(tmp_path, 24 * 6)
    with Store(tmp_path / FILE) as store:
        roll_up(store, Retention(minutes=60, hours=24, days=2))
    days = [start for unit, start, _ in places(tmp_path) if unit == 86400]
    assert len(days) == 2
    kept_ns = stored(tmp_path).charged_ns
    at = later(24 * 6 * 3600 + 3600)
    meter = Meter(tmp_path, at=at)
    meter.observe(at, [reading(24 * 6 * 1800 + 7)])
    assert meter.close(at, wait_s=10)
    assert stored(tmp_path).charged_ns == kept_ns + 7 * S


def test_tenants_without_any_amount_left_are_forgotten(tmp_path):
    meter = Meter(tmp_path, at=START)
    for day in range(5):
        who = another(day)
        at = later(day * 86400)
        meter.observe(at, [reading(0, who=who, origin_ns=0)])
        later_at = later(day * 86400 + 100)
        assert meter.close_tenant(later_at, reading(50, who=who), wait_s=10)[0]
    assert meter.close(later(5 * 86400), wait_s=10)
    with Store(tmp_path / FILE) as store:
        roll_up(store, Retention(minutes=1, hours=1, days=1))
        for day, known in enumerate((False, False, False, True, True)):
            assert bool(store.accounts(another(day).incarnation)) == known


@pytest.mark.parametrize("jump_s", [86400 * 3650, -86400 * 3650])
def test_a_clock_ten_years_off_deletes_nothing(tmp_path, jump_s):
    meter_hours(tmp_path, 4, jump_at=100, jump_s=jump_s)
    with Store(tmp_path / FILE) as store:
        roll_up(store, Retention())
    assert stored(tmp_path).charged_ns == 4 * 1800 * S
    assert all(unit == 60 for unit, *_ in places(tmp_path))


def test_rows_are_bounded_however_many_tenants_there_are(tmp_path):
    meter = Meter(tmp_path, at=START)
    for minute in range(30):
        at = later(60 * minute)
        meter.observe(at, [reading(minute, who=another(n)) for n in range(40)])
    assert meter.close(at, wait_s=10)
    whole = stored(tmp_path)
    assert len(places(tmp_path)) > 1000
    with Store(tmp_path / FILE) as store:
        roll_up(store, dataclasses.replace(Retention(), rows=100))
    assert len(places(tmp_path)) <= 200
    assert stored(tmp_path) == whole


def test_one_users_many_tenants_push_out_nothing_of_anothers(tmp_path):
    """The rows of the user who has most are deleted, oldest first, be they minutes or days."""
    meter = Meter(tmp_path, at=START)
    for day in range(4):
        at = later(86400 * day)
        churn = [reading(day, who=another(40 * day + n, user="mallory")) for n in range(40)]
        numbers = [reading(day, who=another(9000 + 40 * day + n, user=f"{n}")) for n in range(40)]
        meter.observe(at, [reading(day), *churn, *numbers])
        at = later(86400 * day + 60)
        meter.observe(at, [reading(day + 1, who=one.identity) for one in [*churn, *numbers]])
        meter.observe(at, [reading(day + 1)])
    assert meter.close(at, wait_s=10)
    before = stored(tmp_path, "user = 'alice'")
    with Store(tmp_path / FILE) as store:
        roll_up(store, Retention(minutes=1, hours=1, days=400, rows=100))
    assert stored(tmp_path, "user = 'alice'") == before
    kept = places(tmp_path)
    assert sum(unit == 86400 for unit, *_ in kept) <= 100
    for who in ("user = 'mallory'", "user NOT IN ('alice', 'mallory')"):
        assert stored(tmp_path, who).charged_ns > 0, "what is newest is kept of everybody"


def test_a_retention_of_nothing_is_refused():
    with pytest.raises(PenstockError, match="invalid retention"):
        Retention(days=0)
