"""Several devices, and tenants that come in the window."""

from __future__ import annotations

from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.planner import make_plan
from penstock.scheduling.slices.policies import POLICIES
from penstock.scheduling.slices.service import Service
from penstock.scheduling.slices.standing import Standing
from penstock.scheduling.slices.supplier import Supplier
from penstock.scheduling.slices.turns import Turns
from penstock.scheduling.slices.waits import wait_bound_ns

HEAP, FCFS = POLICIES["heap"], POLICIES["fcfs"]


def served(wanted, suppliers, policy=HEAP, slice_ns=10, until_ns=None):
    """(tenant, start, end) of each supplier, in the orders that are given."""
    standings = [Standing(one, at, one.duration_ns, one.ready_ns) for at, one in enumerate(wanted)]
    laps = Service(standings, suppliers, Turns(policy, wanted), slice_ns, until_ns).run()
    return [
        [(one.tenant, one.start_ns, one.end_ns) for lap in own for one in lap.slices()]
        for own in laps
    ]


def word(laps) -> str:
    """The tenants of all slices of one device."""
    return "".join(tenant for tenant, _, _ in laps[0])


def test_the_device_that_is_free_first_takes_the_next_slice():
    wanted = [Demand("a", 9, 20), Demand("b", 5, 15), Demand("c", 1, 10)]
    # The heap is a, b, c. Until 10, a is on x and b on y. Then it is c's turn, and a's in round 2,
    # who stays on x; so c is on y, after a switch. At 20 x is free first, and takes b from y.
    assert served(wanted, [Supplier("x", 1), Supplier("y", 1)]) == [
        [("a", 0, 10), ("a", 10, 20), ("b", 21, 26)],
        [("b", 0, 10), ("c", 11, 21)],
    ]


def test_a_tenant_stays_where_it_is_if_that_device_is_free():
    # x comes at 2, so b is on y. From 4 on both devices become free together, b's turn is the
    # first, and x is the first device: b would go to x, and a from there to y.
    wanted = [Demand("b", 5, 12), Demand("a", 9, 12, arrival_ns=1)]
    suppliers = [Supplier("x", 1, from_ns=2), Supplier("y", 1)]
    assert served(wanted, suppliers, FCFS, slice_ns=2) == [
        [("a", at, at + 2) for at in range(2, 14, 2)],
        [("b", at, at + 2) for at in range(0, 12, 2)],
    ]


def test_one_tenant_never_has_two_devices_but_two_demands_that_are_bound_may():
    suppliers = [Supplier("x"), Supplier("y")]
    assert served([Demand("a", 9, 30)], suppliers) == [
        [("a", 0, 10), ("a", 10, 20), ("a", 20, 30)],
        [],
    ]
    bound = [Demand("a", 9, 30, device="x"), Demand("a", 9, 30, device="y")]
    plan = make_plan(bound, suppliers, HEAP, window_ns=100, lengths_ns=[10])
    assert [device.end_ns for device in plan.devices] == [30, 30]


def test_a_newcomer_gets_its_turn_in_the_round_that_is_on_and_does_not_catch_up():
    wanted = [Demand("a", 9, 50), Demand("b", 5, 50), Demand("c", 1, 50, arrival_ns=45)]
    # The heap is a, b, c. At 45 a has its third slice; c comes behind b.
    assert word(served(wanted, [Supplier("x")])) == "ababab" + "cabcab" + "ccc"
    # The heap is c, b, a. At 45 b has its third slice: c's turn in that round has passed.
    wanted[2] = Demand("c", 99, 50, arrival_ns=45)
    assert word(served(wanted, [Supplier("x")])) == "bababa" + "cbacba" + "ccc"


def test_an_idle_device_serves_who_comes_at_once():
    wanted = [Demand("a", 9, 10), Demand("b", 5, 10, arrival_ns=37)]
    assert served(wanted, [Supplier("x", 3)]) == [[("a", 0, 10), ("b", 40, 50)]]


def test_slices_end_with_the_window_and_with_the_stay_of_a_device():
    wanted = [Demand("a", 9, 100)]
    assert served(wanted, [Supplier("x")], until_ns=25) == [
        [("a", 0, 10), ("a", 10, 20), ("a", 20, 25)]
    ]
    away = [Supplier("x", 1, until_ns=14), Supplier("x", 1, from_ns=30)]
    assert served(wanted, away, until_ns=45) == [
        [("a", 0, 10), ("a", 10, 14)],
        [("a", 30, 40), ("a", 40, 45)],
    ]


def test_a_device_that_leaves_within_the_time_of_a_switch_begins_nothing():
    wanted = [Demand("a", 9, 100)]
    assert served(wanted, [Supplier("x", 3, until_ns=23)]) == [[("a", 0, 10), ("a", 10, 20)]]
    assert served(wanted, [Supplier("x", 3, until_ns=24)])[0][-1] == ("a", 20, 24)


def test_a_device_that_has_left_while_it_was_idle_serves_nobody():
    wanted = [Demand("b", 9, 10), Demand("a", 9, 10, arrival_ns=50)]
    assert served(wanted, [Supplier("x", 3, until_ns=40), Supplier("y", 3)]) == [
        [("b", 0, 10)],
        [("a", 50, 60)],
    ]


def test_the_bound_is_one_slice_of_each_other_tenant_and_the_switches():
    assert wait_bound_ns(3, 100, 10) == 3 * 100 + 4 * 10
    assert wait_bound_ns(0, 100, 10) == 0, "a tenant that is alone does not wait for itself"
    assert wait_bound_ns(1, 100, 10, devices=2) == 10, "a device is free for each"
    assert wait_bound_ns(5, 100, 10, devices=2) == 2 * 5 * 110 // 2 + 10


def test_the_bound_on_one_device_is_reached():
    wanted = [Demand("a", 9, 50), Demand("b", 5, 50), Demand("c", 1, 50)]
    plan = make_plan(wanted, [Supplier("x", 3)], HEAP, window_ns=200, lengths_ns=[10])
    assert set(plan.waits_ns(("", "a"))[1:]) == {wait_bound_ns(2, 10, 3)}
