"""Plans in virtual time, against other demands and devices than were planned."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slice_plans.strategies import HEAP, plans, suppliers_of

from penstock.scheduling.slices.carry_out import carry_out
from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.judge import judge
from penstock.scheduling.slices.planner import make_plan
from penstock.scheduling.slices.policies import POLICIES
from penstock.scheduling.slices.record import Ran
from penstock.scheduling.slices.supplier import Supplier


@given(plans())
def test_what_happens_as_planned_is_the_plan_up_to_the_window_s_end(made):
    plan, policy = made
    record = carry_out(plan, policy, plan.demands, suppliers_of(plan))
    expected = {
        Ran(device.device, one.tenant, one.number, one.start_ns, length_ns)
        for device in plan.devices
        for one in device.slices()
        if (length_ns := min(one.end_ns, plan.window_ns) - one.start_ns) > 0
    }
    assert len(record.ran) == len(expected)
    assert set(record.ran) == expected
    judgement = judge(plan, record)
    assert judgement.blocked_ns == plan.late_ns() == record.left_ns


@st.composite
def stays(draw, plan):
    """Devices of a plan as they were there: always, for some time, twice or not at all."""
    there = []
    for one in suppliers_of(plan):
        times = sorted(draw(st.lists(st.integers(0, 120), max_size=4, unique=True)))
        if not times:
            there.append(one)
        for from_ns, until_ns in zip(times[::2], times[1::2], strict=False):
            there.append(replace(one, from_ns=from_ns, until_ns=until_ns))
    return there


@given(plans(), st.data())
def test_whatever_tenants_ask_for_and_devices_do_no_time_is_given_twice(made, data):
    plan, policy = made
    asked = [
        replace(
            one,
            duration_ns=data.draw(st.integers(0, 70)),
            arrival_ns=data.draw(st.integers(-9, 90)),
        )
        for one in plan.demands
        if data.draw(st.booleans() | st.just(True))
    ]
    there = data.draw(stays(plan))
    record = carry_out(plan, policy, asked, there)
    wanted = {one.key: one for one in asked}
    given_ns = dict.fromkeys(wanted, 0)
    spans: dict[object, list[tuple[int, int]]] = {}
    for device, tenant, _, start_ns, length_ns in record.ran:
        key, end_ns = plan.key(device, tenant), start_ns + length_ns
        given_ns[key] += length_ns
        assert length_ns > 0
        assert start_ns >= wanted[key].ready_ns
        assert end_ns <= plan.window_ns
        assert any(
            one.device == device and one.from_ns <= start_ns and end_ns <= (one.until_ns or end_ns)
            for one in there
        )
        for what in (device, key):
            spans.setdefault(what, []).append((start_ns, end_ns))
    for own in spans.values():
        assert all(end_ns <= start_ns for (_, end_ns), (start_ns, _) in pairwise(sorted(own)))
    planned = {one.key: one.duration_ns for one in plan.demands}
    for key, one in wanted.items():
        assert given_ns[key] <= min(one.duration_ns, planned[key])
        assert record.left_ns.get(key, 0) == one.duration_ns - given_ns[key]
    blocked = judge(plan, record).blocked_ns
    for key, duration_ns in planned.items():
        due_ns = min(duration_ns, wanted[key].duration_ns) if key in wanted else 0
        assert blocked.get(key, 0) == due_ns - given_ns.get(key, 0)


def test_a_slice_whose_tenant_has_nothing_to_do_goes_to_the_next():
    wanted = [Demand("a", 9, 30, device="x"), Demand("b", 5, 30, device="x")]
    plan = make_plan(wanted, [Supplier("x")], HEAP, window_ns=60, lengths_ns=[10])
    less = [replace(wanted[0], duration_ns=10), wanted[1]]
    record = carry_out(plan, HEAP, less, [Supplier("x")])
    assert "".join(one.tenant for one in record.ran) == "abbb"
    assert judge(plan, record).is_satisfied


def test_without_the_device_everything_is_blocked():
    wanted = [Demand("a", 9, 30, device="x"), Demand("b", 5, 30, device="y")]
    plan = make_plan(wanted, [Supplier("x"), Supplier("y")], HEAP, window_ns=60, lengths_ns=[10])
    judgement = judge(plan, carry_out(plan, HEAP, wanted, [Supplier("y")]))
    assert judgement.blocked_ns == {("x", "a"): 30}
    assert judge(plan, carry_out(plan, HEAP, wanted, [])).blocking_rate == 1.0


def test_a_plan_is_carried_out_by_its_own_policy():
    plan = make_plan([], [Supplier("x")], HEAP, window_ns=60, lengths_ns=[10])
    with pytest.raises(ValueError, match="made by heap, not by fcfs"):
        carry_out(plan, POLICIES["fcfs"], [], [])
