"""Plan of a window: the slices of all devices, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.scheduling.slices.lap import last_round
from penstock.scheduling.slices.waits import total_waits_ns, waits_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.scheduling.slices.demand import Demand, DemandKey
    from penstock.scheduling.slices.device_plan import DevicePlan
    from penstock.scheduling.slices.lap import Slice


class _OfDevice(Protocol):
    @property
    def device(self) -> str: ...


T = TypeVar("T", bound=_OfDevice)


@dataclass(frozen=True, slots=True)
class Plan:
    """All slices of all planned work, also those that would begin after the window's end.

    `start_ns`: the window's start, since the epoch; all other times are from there. `demands` are
    in the order of their keys, `devices` in that of their names, so equal plans are equal values.
    """

    start_ns: int
    window_ns: int
    policy: str
    demands: tuple[Demand, ...]
    devices: tuple[DevicePlan, ...]

    @property
    def is_bound(self) -> bool:
        """Whether each demand is bound to a device; else every device serves all."""
        return bool(self.demands and self.demands[0].device)

    @property
    def slice_count(self) -> int:
        """K, of all tenants."""
        return sum(device.slice_count for device in self.devices)

    @property
    def rounds(self) -> int:
        """U, the last round."""
        return last_round(lap for device in self.devices for lap in device.laps)

    @property
    def planned_ns(self) -> int:
        """The sum of T_i, which is that of all slices."""
        return sum(one.duration_ns for one in self.demands)

    @property
    def end_ns(self) -> int:
        """The end of the last slice."""
        return max((device.end_ns for device in self.devices), default=0)

    @property
    def mean_wait_ns(self) -> Fraction:
        """The mean of W_i over the demands with planned work."""
        waits = self.total_waits_ns()
        return Fraction(sum(waits.values()), len(waits) or 1)

    def part_of(self, device: str) -> str:
        """The part to which a device belongs: itself, if demands are bound; else "", the whole."""
        return device if self.is_bound else ""

    def key(self, device: str, tenant: str) -> DemandKey:
        """The key of the demand to which a tenant's slices on a device belong."""
        return (self.part_of(device), tenant)

    def parts(self) -> dict[str, Plan]:
        """Plans that do not depend on each other, by `part_of` their devices."""
        if not self.is_bound:
            return {"": self}
        demands = by_part(self, self.demands)
        return {
            one.device: replace(self, demands=tuple(demands.get(one.device, ())), devices=(one,))
            for one in self.devices
        }

    def slices_of(self, key: DemandKey) -> tuple[Slice, ...]:
        """The slices of one demand, in their order."""
        where, tenant = key
        found = (
            one
            for device in self.devices
            if not where or device.device == where
            for lap in device.laps
            for one in lap.slices_of(tenant)
        )
        return tuple(sorted(found, key=lambda one: one.number))

    def waits_ns(self, key: DemandKey) -> tuple[int, ...]:
        """The waits of one demand before each of its slices."""
        ready_ns = next((one.ready_ns for one in self.demands if one.key == key), 0)
        return waits_ns(self.slices_of(key), ready_ns)

    def total_waits_ns(self) -> dict[DemandKey, int]:
        """W_i of each demand with planned work."""
        waits: dict[DemandKey, int] = {}
        for part in self.parts().values():
            laps = (lap for device in part.devices for lap in device.laps)
            waits |= total_waits_ns(part.demands, laps)
        return waits

    def late_ns(self) -> dict[DemandKey, int]:
        """Planned time that lies behind the window's end, of those that have any."""
        late: dict[DemandKey, int] = {}
        for device in self.devices:
            behind = (lap for lap in device.laps if lap.end_ns > self.window_ns)
            for one in (one for lap in behind for one in lap.slices()):
                if one.end_ns > self.window_ns:
                    key = self.key(device.device, one.tenant)
                    over_ns = one.end_ns - max(one.start_ns, self.window_ns)
                    late[key] = late.get(key, 0) + over_ns
        return late


def by_part(plan: Plan, ones: Iterable[T]) -> dict[str, list[T]]:
    """Demands, suppliers or the like of a plan's parts, by the part of their device."""
    found: dict[str, list[T]] = {}
    for one in ones:
        found.setdefault(plan.part_of(one.device), []).append(one)
    return found
