"""Demands, devices and plans at random, in small whole nanoseconds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from penstock.scheduling.slices.demand import Demand
from penstock.scheduling.slices.planner import make_plan
from penstock.scheduling.slices.policies import POLICIES
from penstock.scheduling.slices.supplier import Supplier

HEAP = POLICIES["heap"]
POLICY = st.sampled_from(list(POLICIES.values()))


def demands(devices: tuple[str, ...] = ("",), *, arrivals: bool = True, most: int = 8):
    """Up to `most` demands, bound to one of `devices` each."""

    @st.composite
    def some(draw) -> list[Demand]:
        names = draw(st.lists(st.sampled_from("abcdefgh"[:most]), unique=True, max_size=most))
        return [
            Demand(
                name,
                workload_device_s=draw(st.sampled_from([0.0, 1.0, 2.0, 2.0, 5.0, 9.0])),
                duration_ns=draw(st.integers(0, 60)),
                arrival_ns=draw(st.integers(-50, 80 if arrivals else 0)),
                priority=draw(st.integers(0, 2)),
                given_ns=draw(st.sampled_from([0, 0, 7, 40])),
                isolated_ns=draw(st.sampled_from([0, 30, 90])),
                device=draw(st.sampled_from(devices)),
            )
            for name in names
        ]

    return some()


@st.composite
def plans(draw, policy=POLICY, *, arrivals: bool = True):
    """A plan, with the policy by which it was made."""
    chosen = draw(policy)
    names = ("x", "y", "z")[: draw(st.integers(1, 3))]
    suppliers = [Supplier(name, draw(st.integers(0, 3))) for name in names]
    bound = draw(st.booleans())
    wanted = draw(demands(names if bound else ("",), arrivals=arrivals))
    plan = make_plan(
        wanted,
        suppliers,
        chosen,
        window_ns=draw(st.integers(1, 200)),
        seed=draw(st.integers(0, 3)),
        lengths_ns=draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)),
    )
    return plan, chosen


def suppliers_of(plan, **changes) -> list[Supplier]:
    return [replace(Supplier(one.device, one.switch_ns), **changes) for one in plan.devices]
