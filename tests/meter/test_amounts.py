"""The amounts that given readings yield: exactly what the counter grew by.

Whatever happens to clocks, to the meter, or to the page.
"""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.meter.support.metering import (
    ALICE,
    GIB,
    START,
    UUID,
    S,
    another,
    later,
    places,
    reading,
    stored,
)

from penstock.node.metering.batch import _places
from penstock.node.metering.meter import Meter
from penstock.node.metering.metered_amounts import FIELDS, Amounts
from penstock.node.metering.reading import Measured, reading_of
from penstock.node.metering.store import Store


@pytest.fixture
def meter(tmp_path):
    one = Meter(tmp_path, at=START)
    yield one
    one.close(later(10**6), wait_s=10)


def test_device_time_is_what_the_counter_grew_by_and_memory_its_integral(meter, tmp_path):
    for tenth in range(101):
        held = 2 * GIB if 20 <= tenth < 70 else 0
        assert meter.observe(later(tenth / 10), [reading(tenth / 20, held)]) == []
    assert meter.flush(later(10), wait_s=10)
    amounts = stored(tmp_path)
    assert amounts.charged_ns == 5 * S
    # Between the readings before and after a change, half of the step is taken.
    assert amounts.byte_seconds == 10 * GIB
    assert amounts.metered_ns == 10 * S
    assert amounts.estimated_ns == amounts.suspicions == 0


def test_a_reading_that_is_not_newer_than_the_last_one_counts_nothing(meter, tmp_path):
    meter.observe(START, [reading(0)])
    meter.observe(later(4), [reading(3)])
    for at in (later(4), later(3), START):
        meter.observe(at, [reading(9, 5 * GIB)])
    meter.observe(later(5), [reading(3.5)])
    assert meter.flush(later(5), wait_s=10)
    assert stored(tmp_path).charged_ns == 3.5 * S
    assert stored(tmp_path).suspicions == 0


def test_use_before_the_meters_first_reading_is_charged_when_it_happened(meter, tmp_path):
    meter.observe(later(300), [reading(200)])
    assert meter.flush(later(300), wait_s=10)
    assert stored(tmp_path).charged_ns == 200 * S
    assert len(places(tmp_path)) >= 5  # over the five minutes since its first launch


@pytest.mark.parametrize("jump_s", [86400 * 3650, -86400 * 3650, 3600, -3600, -1])
def test_a_clock_jump_changes_no_amount(meter, tmp_path, jump_s):
    at = START
    for tenth in range(200):
        at = later(0.1, at, jump_s=jump_s if tenth == 77 else 0)
        meter.observe(at, [reading((tenth + 1) / 20, GIB)])
    assert meter.flush(at, wait_s=10)
    amounts = stored(tmp_path)
    assert amounts.charged_ns == 10 * S
    assert amounts.metered_ns == round(19.9 * S)
    assert amounts.byte_seconds == int(19.9 * GIB)
    assert amounts.suspicions == amounts.estimated_ns == 0


def test_a_gap_is_bridged_and_recorded_as_estimated(tmp_path):
    meter = Meter(tmp_path, at=START)
    meter.observe(START, [reading(0, GIB)])
    meter.observe(later(10), [reading(5, GIB)])
    assert meter.close(later(10))
    meter = Meter(tmp_path, at=later(7210))
    meter.observe(later(7210), [reading(3605, 3 * GIB)])
    meter.observe(later(7211), [reading(3605, 3 * GIB)])
    assert meter.close(later(7211))
    amounts = stored(tmp_path)
    assert amounts.charged_ns == 3605 * S
    assert amounts.estimated_ns == 7210 * S  # ten seconds without a reading are a gap, too
    assert amounts.byte_seconds == (10 + 7200 * 2 + 3) * GIB
    minutes = [row for row in places(tmp_path) if row[0] == 60]
    assert len(minutes) > 115  # the two hours are not told as of the minute in which they ended
    assert max(row[2] for row in minutes) <= 60 * S


def test_a_tenant_of_the_same_name_begins_at_nothing(meter, tmp_path):
    meter.observe(START, [reading(0)])
    stored_now, _ = meter.close_tenant(later(10), reading(8), wait_s=10)
    assert stored_now
    again = another(2)
    at = later(20).mono_ns
    meter.observe(later(20), [reading(0, who=again, origin_ns=at)])
    stored_now, found = meter.close_tenant(
        later(30), reading(7, who=again, origin_ns=at), wait_s=10
    )
    assert stored_now
    assert found == []
    assert stored(tmp_path, "tenant = 'train'").charged_ns == 15 * S
    assert stored(tmp_path, f"incarnation = '{ALICE.incarnation}'").charged_ns == 8 * S


def test_a_closed_tenant_that_is_seen_again_is_not_counted_again(tmp_path):
    """The agent was killed between the commit and the removal of the page."""
    meter = Meter(tmp_path, at=START)
    meter.observe(START, [reading(0)])
    assert meter.close_tenant(later(10), reading(8), wait_s=10) == (True, [])
    meter.observe(later(11), [reading(8)])
    assert meter.close(later(11))
    meter = Meter(tmp_path, at=later(12))
    assert meter.close_tenant(later(12), reading(8), wait_s=10)[0]
    assert meter.close(later(12))
    assert stored(tmp_path).charged_ns == 8 * S


def test_a_machine_started_anew_charges_the_counter_and_no_memory_between(tmp_path):
    meter = Meter(tmp_path, at=START)
    meter.observe(START, [reading(0, GIB)])
    meter.observe(later(2), [reading(2, GIB)])
    assert meter.close(later(2))
    booted = dataclasses.replace(START, wall_ns=START.wall_ns + 500 * S, mono_ns=S, boot_id="b2")
    meter = Meter(tmp_path, at=booted)
    meter.observe(booted, [reading(2.5, GIB)])
    meter.observe(later(1, booted), [reading(3, GIB)])
    assert meter.close(later(1, booted))
    assert stored(tmp_path).charged_ns == 3 * S
    assert stored(tmp_path).byte_seconds == 3 * GIB


def test_a_counter_that_runs_backwards_gives_nothing_back_and_is_reported(meter, tmp_path):
    meter.observe(START, [reading(0)])
    meter.observe(later(100), [reading(90)])
    (found,) = meter.observe(later(200), [reading(0)])
    assert (found.tenant, found.suspicion.kind) == ("train", "runs-backwards")
    meter.observe(later(210), [reading(9)])
    assert meter.flush(later(210), wait_s=10)
    amounts = stored(tmp_path)
    assert amounts.charged_ns == 99 * S
    assert amounts.suspicions == 1


def test_a_counter_faster_than_time_is_charged_the_elapsed_time_and_is_reported(meter, tmp_path):
    meter.observe(START, [reading(0)])
    (found,) = meter.observe(later(10), [reading(2**30)])
    assert found.suspicion.kind == "too-fast"
    meter.observe(later(20), [reading(2**30 + 10)])
    (found, *_) = meter.observe(later(90), [reading(spent_s=(2**64 - 1) / S)])
    assert meter.flush(later(90), wait_s=10)
    amounts = stored(tmp_path)
    assert 20 * S < amounts.charged_ns <= 90 * 1.01 * S + S
    assert amounts.suspicions == 2
    assert amounts.suspicious_ns > 0


def test_a_standing_suspicion_is_reported_once_a_minute(meter):
    meter.observe(START, [reading(0, GIB, device_memory_bytes=GIB)])
    told = 0
    for tenth in range(1, 1201):
        lie = reading(0, (2 + tenth % 2) * GIB, device_memory_bytes=GIB)
        told += len(meter.observe(later(tenth / 10), [lie]))
    assert 2 <= told <= 3


def test_memory_beyond_the_device_is_charged_as_the_whole_device(meter, tmp_path):
    for second in range(11):
        meter.observe(later(second), [reading(0, 1 << 50, device_memory_bytes=GIB)])
    assert meter.flush(later(10), wait_s=10)
    assert stored(tmp_path).byte_seconds == 10 * GIB
    assert stored(tmp_path).suspicions >= 10


def test_one_kernel_of_an_hour_charged_when_it_ends_is_no_suspicion(meter, tmp_path):
    for second in range(3600):
        meter.observe(later(second), [reading(0)])
    assert meter.observe(later(3600), [reading(3600)]) == []
    assert meter.flush(later(3600), wait_s=10)
    assert stored(tmp_path).charged_ns == 3600 * S


def test_the_devices_own_figure_is_stored_beside_the_charge(meter, tmp_path):
    def with_device(at, busy_ns, **more):
        told = {"busy_ns": busy_ns, "memory_bytes": 3 * GIB}
        meter.observe(at, [reading(at.mono_ns / S - 5000, GIB, measured=told)])

    with_device(START, 7 * S)  # an earlier tenant of that name is in it
    with_device(later(2), 8 * S)
    with_device(later(4), 2 * S)  # the device forgot a process that ended
    with_device(later(6), 3 * S)
    assert meter.flush(later(6), wait_s=10)
    amounts = stored(tmp_path)
    assert amounts.measured_ns == 2 * S
    assert amounts.measured_byte_seconds == 18 * GIB
    assert amounts.charged_ns == 6 * S


def test_device_work_that_is_charged_far_too_little_is_reported_with_both_figures(meter, tmp_path):
    found = []
    for second in range(61):  # a fifth of it is charged; then all of it
        measured = {"busy_ns": second * S // 2}
        found += meter.observe(later(second), [reading(second / 10, measured=measured)])
    assert {one.suspicion.kind for one in found} == {"uncharged"}
    assert (
        "measured 6.5 s of work for the tenant, but its page charged 1.3 s"
        in found[0].suspicion.reason
    )
    assert len(found) <= 2  # told once a minute
    for second in range(200):
        measured = {"busy_ns": 30 * S + second * S}
        at, spent_s = later(61 + second), 6 + second * 0.8  # some is charged a moment later
        found = meter.observe(at, [reading(spent_s, measured=measured)])
        assert found == [] or second < 2
    assert meter.flush(later(300), wait_s=10)
    assert stored(tmp_path).suspicions >= 3
    assert stored(tmp_path).charged_ns < stored(tmp_path).measured_ns


def test_where_only_recent_use_is_known_it_is_summed_up(meter, tmp_path):
    for second in range(11):
        meter.observe(later(second), [reading(0, measured={"busy_permille": 250})])
    assert meter.flush(later(10), wait_s=10)
    assert stored(tmp_path).measured_ns == 2.5 * S


# One step of a run: time passes, device time is used, memory changes; then perhaps a flush, a kill
# of the meter (nothing is stored that was not), or an orderly restart.
STEPS = st.lists(
    st.tuples(
        st.integers(1, 3 * 10**9),
        st.integers(0, 1000),
        st.integers(0, 2**28),
        st.sampled_from(["", "", "", "flush", "kill", "restart", "jump"]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40)
@given(STEPS)
def test_any_interleaving_of_readings_flushes_kills_and_restarts_gives_the_same_sum(steps):
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        meter = Meter(directory, at=START)
        at, spent_ns, units = START, 0, 0
        meter.observe(at, [reading(0)])
        assert meter.flush(at, wait_s=10)
        for passed_ns, permille, held_units, then in steps:
            at = later(
                0,
                dataclasses.replace(
                    at, wall_ns=at.wall_ns + passed_ns, mono_ns=at.mono_ns + passed_ns
                ),
            )
            spent_ns, units = spent_ns + passed_ns * permille // 1000, held_units
            one = reading(0, units * 512)
            device = dataclasses.replace(one.devices[0], spent_ns=spent_ns)
            assert meter.observe(at, [dataclasses.replace(one, devices=(device,))]) == []
            if then == "flush":
                assert meter.flush(at, wait_s=10)
            elif then == "kill":
                meter._writer.close(10)  # what is not handed over is gone, as in a killed process
                meter = Meter(directory, at=at)
            elif then == "restart":
                assert meter.close(at, wait_s=10)
                meter = Meter(directory, at=at)
            elif then == "jump":
                at = later(0, at, jump_s=-40_000)
        final = later(1, at)
        one = reading(0, units * 512)
        device = dataclasses.replace(one.devices[0], spent_ns=spent_ns)
        closing = dataclasses.replace(one, devices=(device,))
        assert meter.close_tenant(final, closing, wait_s=10) == (True, [])
        assert meter.close(final, wait_s=10)
        amounts = stored(directory)
        assert amounts.charged_ns == spent_ns
        assert amounts.metered_ns == final.mono_ns - START.mono_ns
        assert amounts.suspicions == 0
        if not any(then in ("kill", "restart") for *_, then in steps):
            assert amounts.byte_seconds == exact_byte_seconds(steps)


def exact_byte_seconds(steps) -> int:
    """The trapezium rule in whole numbers, written anew."""
    before = doubled = 0
    for passed_ns, _, units, _ in steps:
        doubled += (before + units) * 512 * passed_ns
        before = units
    return (doubled + 2 * before * 512 * S) // (2 * S)


@given(
    st.integers(-(2**60), 2**60),
    st.integers(0, 2**58),
    st.lists(st.integers(0, 2**62), min_size=len(FIELDS), max_size=len(FIELDS)),
)
def test_amounts_spread_over_a_gap_add_up_to_the_last_unit(wall_ns, elapsed_ns, values):
    whole = Amounts(*values)
    parts = list(_places(wall_ns, elapsed_ns, whole))
    total = Amounts()
    for unit_s, start_s, part in parts:
        assert start_s % unit_s == 0
        assert start_s * S <= wall_ns
        assert (start_s + unit_s) * S > wall_ns - elapsed_ns
        total.add(part)
    assert total == whole


def test_two_devices_of_a_tenant_have_amounts_of_their_own(meter, tmp_path):
    other = UUID[:-1] + "2"
    for second in range(3):
        two = dataclasses.replace(
            reading(second / 2),
            devices=(
                *reading(second / 2).devices,
                *reading(second / 4, uuid=other).devices,
            ),
        )
        meter.observe(later(second), [two])
    assert meter.flush(later(2), wait_s=10)
    assert stored(tmp_path, f"device_uuid = '{UUID}'").charged_ns == S
    assert stored(tmp_path, f"device_uuid = '{other}'").charged_ns == S // 2


def test_without_a_page_the_devices_own_figures_are_recorded(meter, tmp_path):
    """Once, a tenant with a damaged page was not metered at all meanwhile."""
    meter.observe(later(0), [reading(1, 0, measured={"busy_ns": S})])
    for second in range(1, 5):
        figures = {UUID: Measured(busy_ns=(1 + second) * S)}
        meter.observe(later(second), [reading_of(ALICE, None, None, figures)])
    assert meter.flush(later(5), wait_s=10)
    assert stored(tmp_path).measured_ns == 4 * S
    assert stored(tmp_path).charged_ns == S
    meter.observe(later(6), [reading(3, 0, measured={"busy_ns": 6 * S})])
    assert meter.flush(later(6), wait_s=10)
    assert stored(tmp_path).charged_ns == 3 * S


def test_a_disk_that_hangs_does_not_hold_up_readings_of_new_tenants(meter, monkeypatch):
    """A caller waits at most 50 ms in a second; once, the loop's own thread read SQLite."""
    hangs = threading.Event()
    accounts = Store.accounts

    def accounts_of_a_slow_disk(self, incarnation):
        hangs.wait(20)
        return accounts(self, incarnation)

    monkeypatch.setattr(Store, "accounts", accounts_of_a_slow_disk)
    begun_s = time.monotonic()
    for number in range(50):
        meter.observe(later(number), [reading(1, who=another(number))])
    assert time.monotonic() - begun_s < 1
    hangs.set()
    assert meter.flush(later(60), wait_s=10)
