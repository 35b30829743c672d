"""Five tenants on one device: each figure of the algorithm, worked out by hand.

    tenant           a    b    c    d    e     sum
    workload, T_i   50  300  120  450  210    1130 ms

A switch costs 10 ms. The slice length is chosen among 50, 100, 150 and 200 ms.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from penstock.scheduling.slices.carry_out import carry_out
from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.group import Group
from penstock.scheduling.slices.heap_order import max_heap, pre_order
from penstock.scheduling.slices.judge import judge
from penstock.scheduling.slices.planner import make_plan
from penstock.scheduling.slices.policies import POLICIES
from penstock.scheduling.slices.supplier import Supplier

MS = 10**6
WORK_MS = {"a": 50, "b": 300, "c": 120, "d": 450, "e": 210}
DEMANDS = [
    Demand.of_seconds(tenant, ms / 1000, ms / 1000, device="gpu") for tenant, ms in WORK_MS.items()
]
GPU = Supplier("gpu", switch_ns=10 * MS)
SEED = 1


def plan_of(*lengths_ms: int, window_ms: int = 2000):
    return make_plan(
        DEMANDS,
        [GPU],
        POLICIES["heap"],
        window_ns=window_ms * MS,
        seed=SEED,
        lengths_ns=[ms * MS for ms in lengths_ms],
    )


def shown_ms(plan):
    """Rounds of slices: tenant, start and end."""
    rounds: dict[int, list[tuple[str, int, int]]] = {}
    for one in plan.devices[0].slices():
        rounds.setdefault(one.round, []).append((one.tenant, one.start_ns // MS, one.end_ns // MS))
    return list(rounds.values())


def waits_ms(plan):
    return {tenant: ns // MS for (_, tenant), ns in plan.total_waits_ns().items()}


def test_the_arrangement_becomes_a_heap_from_the_bottom_up_and_is_read_in_pre_order():
    names = [one.tenant for one in Group.of(DEMANDS, [GPU], SEED).demands]
    assert names == ["c", "a", "d", "e", "b"]
    # As an array:      c   a   d   e   b
    #                 120  50 450 210 300
    # The last parent, a, has the children e and b: b, the larger, goes up.      c b d e a
    # The first, c, has the children b and d: d goes up; c has no children there. d b c e a
    heap = max_heap([WORK_MS[name] for name in names])
    assert [names[at] for at in heap] == ["d", "b", "c", "e", "a"]
    # d, then its left child b with b's children e and a, then its right child c.
    order = [names[at] for at in pre_order(heap)]
    assert order == ["d", "b", "e", "a", "c"]
    assert plan_of(100).devices[0].order == tuple(order)


def test_slices_of_100_ms_make_five_rounds_in_this_order():
    plan = plan_of(100)
    # K: a ceil(50/100) = 1, b 3, c ceil(1.2) = 2, d ceil(4.5) = 5, e ceil(2.1) = 3.
    assert {one.tenant: one.slices(100 * MS) for one in DEMANDS} == {
        "a": 1, "b": 3, "c": 2, "d": 5, "e": 3,
    }  # fmt: skip
    assert (plan.slice_count, plan.rounds) == (1 + 3 + 2 + 5 + 3, 5)
    assert shown_ms(plan) == [
        # 10 ms of a switch before each slice but the first; d follows itself in the last round.
        [("d", 0, 100), ("b", 110, 210), ("e", 220, 320), ("a", 330, 380), ("c", 390, 490)],
        [("d", 500, 600), ("b", 610, 710), ("e", 720, 820), ("c", 830, 850)],
        [("d", 860, 960), ("b", 970, 1070), ("e", 1080, 1090)],
        [("d", 1100, 1200)],
        [("d", 1200, 1250)],
    ]
    assert plan.devices[0].switches == 14 - 1 - 1  # not before the first, and not at 1200


def test_waits_are_from_each_end_to_the_next_start():
    plan = plan_of(100)
    rounds_ms = {
        "a": (330,),
        "b": (110, 610 - 210, 970 - 710),
        "c": (390, 830 - 490),
        "d": (0, 500 - 100, 860 - 600, 1100 - 960, 1200 - 1200),
        "e": (220, 720 - 320, 1080 - 820),
    }
    for tenant, waits in rounds_ms.items():
        assert plan.waits_ns(("gpu", tenant)) == tuple(wait * MS for wait in waits)
    # Or: the last end, without the tenant's own work.
    assert waits_ms(plan) == {
        "a": 380 - 50, "b": 1070 - 300, "c": 850 - 120, "d": 1250 - 450, "e": 1090 - 210,
    }  # fmt: skip
    assert plan.mean_wait_ns == Fraction((330 + 770 + 730 + 800 + 880) * MS, 5)


def test_slices_of_150_ms_cost_the_least_in_switches_and_waits():
    plan = plan_of(50, 100, 150, 200)
    costs = {
        one.slice_ns // MS: (one.slices, one.rounds, one.waits_ns // MS, one.cost_ns / MS)
        for one in plan.devices[0].lengths
    }
    assert costs == {
        # t0: K, U, the sum of W_i, and c·K + W with W the mean of five
        # K = 1+6+3+9+5; ends a 230, c 740, e 1060, b 1180, d 1340, less T: 180+620+850+880+890
        50: (24, 9, 3420, 24 * 10 + 3420 / 5),  # 240 + 684 = 924
        100: (14, 5, 3510, 14 * 10 + 3510 / 5),  # 140 + 702 = 842
        # K = 1+2+1+3+2; ends a 530, c 660, b 980, e 1050, d 1210: 480+540+680+840+760
        150: (9, 3, 3300, 9 * 10 + 3300 / 5),  # 90 + 660 = 750
        # K = 1+2+1+3+2; ends a 680, c 810, b 1130, e 1150, d 1210: 630+690+830+940+760
        200: (9, 3, 3850, 9 * 10 + 3850 / 5),  # 90 + 770 = 860
    }
    assert plan.devices[0].slice_ns == 150 * MS
    assert plan.devices[0].reason == (
        "150 ms: 90 ms of switches and 660 ms of mean wait, 750 ms together; "
        "the next best of 4 lengths is 100 ms with 842 ms"
    )
    assert shown_ms(plan) == [
        [("d", 0, 150), ("b", 160, 310), ("e", 320, 470), ("a", 480, 530), ("c", 540, 660)],
        [("d", 670, 820), ("b", 830, 980), ("e", 990, 1050)],
        [("d", 1060, 1210)],
    ]


def test_a_window_of_900_ms_blocks_290_ms_and_leaves_one_slice_of_rounds_2_and_3_unscheduled():
    plan = plan_of(150, window_ms=900)
    # Planned behind the window: b from 900 to 980, e 990 to 1050, d 1060 to 1210.
    assert plan.late_ns() == {
        ("gpu", "b"): 80 * MS, ("gpu", "e"): 60 * MS, ("gpu", "d"): 150 * MS,
    }  # fmt: skip
    judgement = judge(plan, carry_out(plan, POLICIES["heap"], DEMANDS, [GPU]))
    assert not judgement.is_satisfied
    assert judgement.blocked_ns == plan.late_ns()
    assert judgement.blocking_rate == pytest.approx((80 + 60 + 150) / 1130)
    # b's second slice had the device, for 70 of 150 ms; e's second and d's third had none.
    assert judgement.unscheduled == (0, 1, 1)
    # The mean is 2/3, and s² = (4/9 + 1/9 + 1/9) / 3.
    assert judgement.variance == pytest.approx(2 / 9)


def test_a_window_of_two_seconds_satisfies_all():
    plan = plan_of(150)
    judgement = judge(plan, carry_out(plan, POLICIES["heap"], DEMANDS, [GPU]))
    assert judgement.is_satisfied
    assert (judgement.blocking_rate, judgement.unscheduled) == (0, (0, 0, 0))
    assert judgement.variance == 0
