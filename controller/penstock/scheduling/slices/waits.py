"""Waits: how long tenants wait for their slices, and the bound that round robin keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.scheduling.slices.demand import Demand, DemandKey
    from penstock.scheduling.slices.lap import Lap, Slice


def waits_ns(slices: Iterable[Slice], ready_ns: int = 0) -> tuple[int, ...]:
    """The wait before each slice of one tenant, in their order.

    The first is from `ready_ns`, when it came, or the window began; any other is from the end of
    the slice before. Their sum is W_i.
    """
    waits = []
    free_ns = ready_ns
    for one in slices:
        waits.append(one.start_ns - free_ns)
        free_ns = one.end_ns
    return tuple(waits)


def ends_ns(laps: Iterable[Lap]) -> dict[str, int]:
    """When the last slice of each tenant ends, on any of the devices that the laps are of."""
    ends: dict[str, int] = {}
    for lap in laps:
        after_ns = lap.switch_ns if len(lap.turns) > 1 else 0
        at_ns = lap.start_ns + (lap.times - 1) * lap.period_ns
        for turn in lap.turns:
            at_ns += turn.length_ns
            ends[turn.tenant] = max(at_ns, ends.get(turn.tenant, 0))
            at_ns += after_ns
    return ends


def total_waits_ns(demands: Iterable[Demand], laps: Iterable[Lap]) -> dict[DemandKey, int]:
    """W_i of each demand with slices, all of which are in `laps`.

    All waits of one that is served by one device at a time are what its own slices leave of the
    time from its coming to its last slice's end.
    """
    ends = ends_ns(laps)
    return {
        one.key: ends[one.tenant] - one.ready_ns - one.duration_ns
        for one in demands
        if one.duration_ns
    }


def wait_bound_ns(others: int, slice_ns: int, switch_ns: int, devices: int = 1) -> int:
    """The longest wait between two slices of a tenant in round robin, arrivals included.

    `others`: how many other tenants are served meanwhile. `switch_ns`: the largest of the devices.

    On one device each of them has one slice in between, and there is a switch before each of these
    and before the tenant's own. On several devices that serve all, tenants drift apart by up to one
    round, so each may have two; all devices are busy while the tenant waits, so they divide them.
    """
    if devices == 1:
        return others * slice_ns + (others + 1) * switch_ns if others else 0
    if others < devices:
        return switch_ns
    return -(-2 * others * (slice_ns + switch_ns) // devices) + switch_ns
