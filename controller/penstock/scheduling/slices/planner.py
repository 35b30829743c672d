"""Planner: lays the slices of a window from demands, devices and a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.scheduling.slices.demand import check_demands
from penstock.scheduling.slices.device_plan import DevicePlan
from penstock.scheduling.slices.group import Group
from penstock.scheduling.slices.lap import last_round, slice_count
from penstock.scheduling.slices.length import LENGTHS_NS, LengthCost, check_lengths, least
from penstock.scheduling.slices.plan import Plan
from penstock.scheduling.slices.supplier import Supplier, check_suppliers
from penstock.scheduling.slices.waits import total_waits_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.lap import Lap
    from penstock.scheduling.slices.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What is settled for a device, or for all that serve together: by the search, or a person."""

    seed: int
    slice_ns: int


def make_plan(
    demands: Iterable[Demand],
    suppliers: Iterable[Supplier],
    policy: Policy,
    *,
    window_ns: int,
    start_ns: int = 0,
    seed: int = 0,
    lengths_ns: Sequence[int] = LENGTHS_NS,
    chosen: Mapping[str, Algorithm] | None = None,
) -> Plan:
    """The plan of a window.

    `lengths_ns`: the slice lengths to choose from, for each device by itself if demands are bound.
    `chosen`: seeds and lengths that are settled, by device, or under "" if demands are not bound;
    devices that are not there are passed over.

    Raises:
        PenstockError: demands, devices or lengths are not usable, or the slices are too many.
    """
    wanted = tuple(demands)
    there = [Supplier(one.device, one.switch_ns) for one in suppliers]  # as if all stayed
    settled = chosen or {}
    check_demands(wanted)
    check_suppliers(there)
    check_lengths([*lengths_ns, *(one.slice_ns for one in settled.values())])
    if window_ns <= 0:
        raise PenstockError(f"a window of {window_ns} ns is not possible", "it must be above 0 ns")
    devices: list[DevicePlan] = []
    for name, (members, servers) in _split(wanted, there).items():
        algorithm = settled.get(name)
        lengths = [algorithm.slice_ns] if algorithm else sorted(set(lengths_ns))
        devices += _plan_group(
            members, servers, policy, algorithm.seed if algorithm else seed, lengths
        )
    return Plan(
        start_ns,
        window_ns,
        policy.name,
        tuple(sorted(wanted, key=lambda one: one.key)),
        tuple(sorted(devices, key=lambda one: one.device)),
    )


def _split(
    demands: Sequence[Demand], suppliers: Sequence[Supplier]
) -> dict[str, tuple[list[Demand], list[Supplier]]]:
    """What is planned apart: each device with those bound to it, or all together under ""."""
    if not any(one.device for one in demands):
        return {"": (list(demands), list(suppliers))}
    groups: dict[str, tuple[list[Demand], list[Supplier]]] = {}
    for supplier in suppliers:
        groups[supplier.device] = ([], [supplier])
    for one in demands:
        if one.device not in groups:
            raise PenstockError(
                f"tenant {one.tenant} is bound to device {one.device}, which is not there",
                fix="list the device, or bind the tenant to another one",
            )
        groups[one.device][0].append(one)
    return groups


def _plan_group(
    demands: Sequence[Demand],
    suppliers: Sequence[Supplier],
    policy: Policy,
    seed: int,
    lengths_ns: Sequence[int],
) -> list[DevicePlan]:
    """The plans of suppliers that serve the same demands, by the length that costs the least."""
    group = Group.of(demands, suppliers, seed)
    costs: list[LengthCost] = []
    best: list[tuple[Lap, ...]] = []
    for slice_ns in lengths_ns:
        layout = group.planned_laps(policy, slice_ns)
        costs.append(_cost(group, layout, slice_ns))
        if least(costs) is costs[-1]:
            best = layout
    slice_ns = least(costs).slice_ns
    return [
        DevicePlan(one.device, seed, slice_ns, one.switch_ns, laps, tuple(costs))
        for one, laps in zip(group.suppliers, best, strict=True)
    ]


def _cost(group: Group, layout: Sequence[Sequence[Lap]], slice_ns: int) -> LengthCost:
    laps = [lap for one in layout for lap in one]
    switching_ns = sum(
        slice_count(one) * supplier.switch_ns
        for one, supplier in zip(layout, group.suppliers, strict=True)
    )
    waits = total_waits_ns(group.demands, laps)
    return LengthCost(
        slice_ns, slice_count(laps), last_round(laps), switching_ns, sum(waits.values()), len(waits)
    )
