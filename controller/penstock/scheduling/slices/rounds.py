"""Rounds: the slices of one device whose tenants are all there and get one slice a round each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.scheduling.slices.lap import LapWriter, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.lap import Lap


def rounds(order: Sequence[Demand], slice_ns: int, switch_ns: int) -> tuple[Lap, ...]:
    """Laps of round robin in an order, from the window's start.

    Between two ends of tenants all rounds are alike, so this takes a step for each different K_i,
    however short the slices are. `Service` gives the same laps, slice by slice.
    """
    writer = LapWriter(switch_ns)
    needs = [(one, one.slices(slice_ns)) for one in order]
    done = 0
    while needs := [(one, slices) for one, slices in needs if slices > done]:
        last = min(slices for _, slices in needs)  # the next round in which a tenant ends
        if last - 1 > done:
            full = tuple(Turn(one.tenant, done + 1, done + 1, slice_ns) for one, _ in needs)
            writer.add_lap(full, last - 1 - done)
        writer.add_lap(
            tuple(
                Turn(one.tenant, last, last, min(slice_ns, one.duration_ns - (last - 1) * slice_ns))
                for one, _ in needs
            ),
            1,
        )
        done = last
    return writer.laps()
