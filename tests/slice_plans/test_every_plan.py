"""Whatever is planned by whatever policy: slices, sums, devices and waits."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.slice_plans.strategies import HEAP, POLICY, demands, plans

from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.lap import LapWriter
from penstock.scheduling.slices.planner import make_plan
from penstock.scheduling.slices.policies import POLICIES
from penstock.scheduling.slices.supplier import Supplier
from penstock.scheduling.slices.waits import wait_bound_ns


def slices_by_demand(plan):
    """The slices of each demand in the order of time, found the long way."""
    found = {one.key: [] for one in plan.demands}
    for device in plan.devices:
        for one in device.slices():
            found[plan.key(device.device, one.tenant)].append(one)
    return {key: sorted(ones, key=lambda one: one.start_ns) for key, ones in found.items()}


def occupied(device):
    """From when on a device is occupied by each of its slices: with the switch to it."""
    spans, before = [], None
    for one in device.slices():
        switch_ns = device.switch_ns if before not in {None, one.tenant} else 0
        spans.append((one.start_ns - switch_ns, one))
        before = one.tenant
    return spans


@given(plans())
def test_every_slice_is_planned_once_and_they_sum_up_to_the_duration_exactly(made):
    plan, _ = made
    slices = slices_by_demand(plan)
    lengths = {device.device: device.slice_ns for device in plan.devices}
    for one in plan.demands:
        own = slices[one.key]
        slice_ns = lengths[one.device] if one.device else plan.devices[0].slice_ns
        assert [each.number for each in own] == list(range(1, one.slices(slice_ns) + 1))
        assert sum(each.length_ns for each in own) == one.duration_ns
        assert all(each.length_ns == slice_ns for each in own[:-1])
        assert all(0 < each.length_ns <= slice_ns for each in own)
        assert all(after.round == before.round + 1 for before, after in pairwise(own))
    assert plan.planned_ns == sum(device.busy_ns for device in plan.devices)
    assert plan.slice_count == sum(map(len, slices.values()))


@given(plans())
def test_a_device_serves_one_tenant_at_a_time_with_a_switch_between_two(made):
    for device in made[0].devices:
        spans = occupied(device)
        assert all(one.end_ns <= from_ns for (_, one), (from_ns, _) in pairwise(spans))
        tenants = [one.tenant for _, one in spans]
        assert device.switches == sum(one != other for one, other in pairwise(tenants))
        assert device.end_ns == (spans[-1][1].end_ns if spans else 0)


@given(plans())
def test_a_demand_is_on_one_device_at_a_time_and_not_before_it_comes(made):
    plan, _ = made
    for one in plan.demands:
        own = slices_by_demand(plan)[one.key]
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(own))
        assert all(each.start_ns >= one.ready_ns for each in own)


@given(plans())
def test_nobody_waits_while_a_device_that_may_serve_it_is_idle(made):
    plan, _ = made
    spans = {device.device: occupied(device) for device in plan.devices}
    for one in plan.demands:
        may_serve = [own for name, own in spans.items() if one.device in {"", name}]
        from_ns = {each: begin_ns for own in may_serve for begin_ns, each in own}
        free_ns = one.ready_ns
        for each in slices_by_demand(plan)[one.key]:
            for own in may_serve:
                busy_to_ns = free_ns
                for begin_ns, other in own:
                    if begin_ns <= busy_to_ns < other.end_ns:
                        busy_to_ns = other.end_ns
                assert busy_to_ns >= from_ns[each]
            free_ns = each.end_ns


@given(plans())
def test_waits_are_what_the_slices_say(made):
    plan, _ = made
    total = plan.total_waits_ns()
    for one in plan.demands:
        waits = plan.waits_ns(one.key)
        assert sum(waits) == total.get(one.key, 0)
        assert plan.slices_of(one.key) == tuple(slices_by_demand(plan)[one.key])
        assert all(wait_ns >= 0 for wait_ns in waits)


@given(plans(policy=st.just(HEAP)))
def test_in_rounds_nobody_waits_longer_than_the_bound_between_two_slices(made):
    plan, _ = made
    for part in plan.parts().values():
        slice_ns = part.devices[0].slice_ns
        switch_ns = max(device.switch_ns for device in part.devices)
        others = sum(one.duration_ns > 0 for one in part.demands) - 1
        bound_ns = wait_bound_ns(others, slice_ns, switch_ns, len(part.devices))
        for one in part.demands:
            assert all(wait_ns <= bound_ns for wait_ns in plan.waits_ns(one.key)[1:])


@given(plans(policy=st.just(HEAP)))
def test_in_rounds_on_one_device_each_other_tenant_has_at_most_one_slice_in_between(made):
    plan, _ = made
    for device in plan.devices if plan.is_bound or len(plan.devices) == 1 else ():
        tenants = [one.tenant for one in device.slices()]
        for tenant in set(tenants):
            places = [at for at, other in enumerate(tenants) if other == tenant]
            for first, second in pairwise(places):
                between = tenants[first + 1 : second]
                assert len(between) == len(set(between))


@given(POLICY, st.integers(0, 3), st.booleans(), st.data())
def test_the_order_in_which_demands_and_devices_are_given_changes_nothing(
    policy, seed, bound, data
):
    names = "xyz"[: data.draw(st.integers(1, 3))]
    wanted = data.draw(demands(tuple(names) if bound else ("",)))
    devices = [Supplier(name, 2) for name in names]
    mixed, others = data.draw(st.permutations(wanted)), data.draw(st.permutations(devices))
    options = {"window_ns": 99, "seed": seed}
    one = make_plan(wanted, devices, policy, lengths_ns=[5, 9], **options)
    assert one == make_plan(mixed, others, policy, lengths_ns=[9, 5], **options)


def test_the_order_of_equal_demands_depends_on_the_seed():
    wanted = [Demand(name, 1, 10) for name in "abcd"]
    for policy in POLICIES.values():
        orders = {
            make_plan(wanted, [Supplier("x")], policy, window_ns=99, seed=seed).devices[0].order
            for seed in range(40)
        }
        assert len(orders) > 12, policy.name


@given(plans())
def test_folding_the_slices_again_gives_the_same_laps(made):
    for device in made[0].devices:
        writer = LapWriter(device.switch_ns)
        for one in device.slices():
            writer.add(*one)
        assert writer.laps() == device.laps
