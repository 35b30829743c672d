"""Plan of one device: its slices in the order of time, and how they were chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.scheduling.slices.lap import slice_count
from penstock.scheduling.slices.length import reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.scheduling.slices.lap import Lap, Slice
    from penstock.scheduling.slices.length import LengthCost


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The slices of a device.

    `seed`: of the random arrangement. `lengths`: what the slice lengths that were considered would
    cost. Devices that serve the same tenants share both.
    """

    device: str
    seed: int
    slice_ns: int
    switch_ns: int
    laps: tuple[Lap, ...]
    lengths: tuple[LengthCost, ...]

    def slices(self) -> Iterator[Slice]:
        """The planned slices, in the order of time."""
        for lap in self.laps:
            yield from lap.slices()

    @property
    def slice_count(self) -> int:
        """How many slices."""
        return slice_count(self.laps)

    @property
    def busy_ns(self) -> int:
        """The sum of their lengths."""
        return sum(turn.length_ns * lap.times for lap in self.laps for turn in lap.turns)

    @property
    def end_ns(self) -> int:
        """The end of the last slice, which may lie behind the window's end; 0: there is none."""
        return self.laps[-1].end_ns if self.laps else 0

    @property
    def switches(self) -> int:
        """How often one tenant follows another."""
        count, before = 0, ""
        for lap in self.laps:
            if before and before != lap.turns[0].tenant:
                count += 1
            if len(lap.turns) > 1:
                count += len(lap.turns) * lap.times - 1
            before = lap.turns[-1].tenant
        return count

    @property
    def order(self) -> tuple[str, ...]:
        """Tenants in the order of their first slices: for round robin, their priority."""
        return tuple(dict.fromkeys(turn.tenant for lap in self.laps for turn in lap.turns))

    @property
    def reason(self) -> str:
        """Why the slices are as long as they are."""
        return reason(self.slice_ns, self.lengths)
