"""Hold: the cut of cores and the suspension that enforcement imposes on a quota page."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_shim.pages import DeviceLimit, Limits

LEAST_SHARE = 10  # a throttled tenant keeps at least 1/10 of its share


@dataclass(frozen=True)
class Hold:
    """A hold, empty by default. It is applied last, to otherwise complete limits."""

    cut_permille: dict[str, int] = field(default_factory=dict)  # by device
    suspended: bool = False

    def applied(self, limits: Limits) -> Limits:
        """`limits` with the cores cut, and suspended if the hold suspends."""
        devices = tuple(self._cut(device) for device in limits.devices)
        return dataclasses.replace(
            limits, devices=devices, suspended=limits.suspended or self.suspended
        )

    def _cut(self, device: DeviceLimit) -> DeviceLimit:
        cut = self.cut_permille.get(device.uuid, 0)
        if not cut:
            return device
        cores = cut_cores(device.cores_permille, cut)
        return dataclasses.replace(device, cores_permille=cores, allowance_permille=None)


def cut_cores(granted_permille: int, cut_permille: int) -> int:
    """The share after a cut: at least a tenth of the grant, so that running work can finish."""
    return max(1, granted_permille // LEAST_SHARE, granted_permille - cut_permille)
