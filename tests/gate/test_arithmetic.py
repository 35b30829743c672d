"""The gate's arithmetic on its own: no driver, no clock, no waiting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_shim._native import ffi, lib

MS = 1_000_000
BIT = int(lib.PENSTOCK_RING_BIT_NS)
RING_NS = int(lib.PENSTOCK_RING_WORDS) * 32 * BIT
START = 1_000_000 * MS
FOREVER = 2**64 - 1


@pytest.fixture
def gate() -> Any:
    return ffi.new("penstock_gate_device *")


def admit(gate: Any, permille: int, now: int, in_flight: int = 0) -> tuple[bool, int]:
    """Whether a launch may go, and after how many nanoseconds to ask again."""
    return ask(gate, permille, now_ns=now, in_flight_ns=in_flight)


def ask(gate: Any, permille: int, **said: int | bool) -> tuple[bool, int]:
    """The same for a launch that is all of `said`."""
    wait = ffi.new("uint64_t *")
    launch = ffi.new("penstock_gate_launch *", said)
    return bool(lib.penstock_gate_admit(gate, permille, launch, wait)), int(wait[0])


def admit_round(gate: Any, permille: int, now: int, ns: int, *, begins: bool) -> bool:
    """Whether a launch may go that goes together with others of `ns`."""
    return ask(gate, permille, now_ns=now, round_ns=ns, begins_round=begins)[0]


def mark(gate: Any, begin: int, end: int, limit: int = FOREVER) -> int:
    return int(lib.penstock_gate_mark(gate, begin, end, limit))


def test_overlapping_intervals_are_charged_once(gate: Any) -> None:
    assert mark(gate, START, START + 100 * BIT) == 100 * BIT
    assert mark(gate, START + 50 * BIT, START + 150 * BIT) == 50 * BIT
    assert mark(gate, START, START + 150 * BIT) == 0


def test_a_limited_interval_takes_what_others_left_of_it(gate: Any) -> None:
    interval = (START, START + 100 * BIT)
    assert mark(gate, *interval, 30 * BIT) == 30 * BIT
    assert mark(gate, *interval, 30 * BIT) == 30 * BIT
    assert mark(gate, *interval, 90 * BIT) == 40 * BIT


def test_the_ring_comes_round_without_remembering_the_last_turn(gate: Any) -> None:
    assert mark(gate, START, START + 10 * BIT) == 10 * BIT
    assert mark(gate, START + RING_NS, START + RING_NS + 10 * BIT) == 10 * BIT


def test_an_interval_older_than_the_ring_counts_as_new(gate: Any) -> None:
    assert mark(gate, START + RING_NS, START + RING_NS + 64 * BIT) == 64 * BIT
    assert mark(gate, START, START + 64 * BIT) == 64 * BIT


def test_an_interval_longer_than_the_ring_is_charged_in_full(gate: Any) -> None:
    assert mark(gate, START, START + 3 * RING_NS) == 3 * RING_NS // BIT * BIT


@given(
    st.lists(
        st.tuples(st.integers(0, 2000 * BIT), st.integers(1, 300 * BIT)), min_size=1, max_size=40
    )
)
def test_what_is_charged_is_the_length_of_the_union(pieces: list[tuple[int, int]]) -> None:
    gate = ffi.new("penstock_gate_device *")
    charged = sum(mark(gate, START + begin, START + begin + length) for begin, length in pieces)
    covered = {
        bit
        for begin, length in pieces
        for bit in range((START + begin) // BIT, (START + begin + length) // BIT)
    }
    assert charged == len(covered) * BIT


def test_short_intervals_are_charged_without_bias(gate: Any) -> None:
    lengths, at = 0, START
    for step in range(20_000):
        length = 3_000 + step * 7919 % 20_000
        mark(gate, at, at + length)
        lengths += length
        at += length + step * 104_729 % 40_000
    charged = sum((word & 0xFFFFFFFF).bit_count() for word in gate.ring) * BIT
    assert charged == pytest.approx(lengths, rel=0.02)


def test_a_first_launch_goes_and_marks_the_origin(gate: Any) -> None:
    assert admit(gate, 100, START)[0]
    assert gate.origin_ns == START


def test_an_overdraft_closes_the_gate_until_a_full_burst_is_there(gate: Any) -> None:
    burst = int(lib.penstock_gate_burst_ns(500))
    assert admit(gate, 500, START)[0]
    spare = int(lib.penstock_gate_credit_ns(gate, 500, START, 0))
    lib.penstock_gate_charge(gate, 500, spare + MS)
    admitted, wait = admit(gate, 500, START)
    assert not admitted
    assert wait == pytest.approx(2 * (burst + MS), rel=1e-6)
    assert not admit(gate, 500, START + wait - MS)[0]
    assert admit(gate, 500, START + wait + 10)[0]


def test_work_in_flight_counts_against_the_credit(gate: Any) -> None:
    assert admit(gate, 500, START)[0]
    spare = int(lib.penstock_gate_credit_ns(gate, 500, START, 0))
    assert admit(gate, 500, START, spare)[0]
    assert not admit(gate, 500, START, spare + 1)[0]


@pytest.mark.parametrize("permille", [50, 300, 950])
def test_a_round_begins_when_the_credit_covers_it_and_ends_though_it_does_not(
    gate: Any, permille: int
) -> None:
    ns = 12 * MS
    assert admit(gate, permille, START)[0]
    lib.penstock_gate_charge(gate, permille, 40 * MS)
    owed = -int(lib.penstock_gate_credit_ns(gate, permille, START, 0))
    earned = START + (owed + ns) * 1000 // permille
    assert not admit_round(gate, permille, START, ns, begins=False)
    assert not admit_round(gate, permille, earned - MS, ns, begins=False)  # it is shut
    assert admit_round(gate, permille, earned + MS, ns, begins=True)
    lib.penstock_gate_charge(gate, permille, 5 * MS)
    assert admit_round(gate, permille, earned + MS, ns, begins=False)
    assert not admit_round(gate, permille, earned + MS, ns, begins=True)
    assert not admit_round(gate, permille, earned + MS, ns, begins=False)  # that shut it


def test_an_idle_tenant_saves_nothing_beyond_the_burst(gate: Any) -> None:
    admit(gate, 300, START)
    later = START + 60_000 * MS
    assert admit(gate, 300, later)[0]
    most = int(lib.penstock_gate_burst_ns(300) + lib.PENSTOCK_GATE_SAVED_NS)
    assert int(lib.penstock_gate_credit_ns(gate, 300, later, 0)) <= most


def test_a_late_wake_up_costs_the_tenant_nothing(gate: Any) -> None:
    admit(gate, 500, START)
    lib.penstock_gate_charge(gate, 500, 40 * MS)
    admitted, wait = admit(gate, 500, START)
    assert not admitted
    late = START + wait + 20 * MS
    before = int(lib.penstock_gate_credit_ns(gate, 500, late, 0))
    assert admit(gate, 500, late)[0]
    assert int(lib.penstock_gate_credit_ns(gate, 500, late, 0)) == pytest.approx(before, abs=10)


@pytest.mark.parametrize("permille", [1, 50, 300, 999])
def test_charges_are_paid_back_at_exactly_the_share(gate: Any, permille: int) -> None:
    admit(gate, permille, START)
    for _ in range(1000):
        lib.penstock_gate_charge(gate, permille, 123_457)
    assert gate.spent_ns == 123_457_000
    credit = int(lib.penstock_gate_credit_ns(gate, permille, START, 0))
    owed = int(lib.penstock_gate_burst_ns(permille) + lib.PENSTOCK_GATE_SAVED_NS) - 123_457_000
    assert credit == pytest.approx(owed, abs=2000 * permille / 1000 + 2)


def test_a_changed_share_turns_no_overdraft_into_a_flood(gate: Any) -> None:
    admit(gate, 700, START)
    lib.penstock_gate_charge(gate, 700, 40 * MS)
    assert int(lib.penstock_gate_credit_ns(gate, 700, START, 0)) < 0
    assert int(lib.penstock_gate_credit_ns(gate, 200, START, 0)) < 0
    assert int(lib.penstock_gate_credit_ns(gate, 200, START, 0)) > -10 * MS


@pytest.mark.parametrize(("before", "after"), [(10, 600), (600, 10), (300, 301)])
def test_an_overdraft_is_device_time_whatever_the_share_becomes(
    gate: Any, before: int, after: int
) -> None:
    admit(gate, before, START)
    lib.penstock_gate_charge(gate, before, 100 * MS)
    admit(gate, before, START)
    overdraft = int(lib.penstock_gate_credit_ns(gate, before, START, 0))
    assert overdraft < 0
    admit(gate, after, START)
    assert int(lib.penstock_gate_credit_ns(gate, after, START, 0)) == pytest.approx(
        overdraft, rel=1e-3
    )


pieces = st.lists(
    st.tuples(st.integers(0, 20 * MS), st.integers(0, 20 * MS)), min_size=1, max_size=60
)


@given(pieces=pieces, least=st.integers(0, 1000))
def test_charges_by_learned_costs_stay_within_the_time_that_was_covered(
    pieces: list[tuple[int, int]], least: int
) -> None:
    gate = ffi.new("penstock_gate_device *")
    covered = charged = 0
    for covers, cost in pieces:
        charged += int(lib.penstock_gate_charge_within(gate, 500, covers, cost, least))
        covered += covers
    slack = 10 * MS
    assert charged <= covered + slack
    assert charged >= covered * least // 1000 - slack - len(pieces)
    assert gate.spent_ns == charged


def test_work_that_learned_costs_call_too_short_is_charged_by_the_time_it_covered(
    gate: Any,
) -> None:
    for _ in range(100):
        lib.penstock_gate_charge_within(gate, 500, 10 * MS, 1 * MS, 900)
    assert gate.spent_ns == pytest.approx(900 * MS, abs=11 * MS)


def test_work_that_learned_costs_call_too_long_is_charged_by_the_time_it_covered(gate: Any) -> None:
    for _ in range(100):
        lib.penstock_gate_charge_within(gate, 500, 1 * MS, 10 * MS, 900)
    assert gate.spent_ns == pytest.approx(100 * MS, abs=11 * MS)
