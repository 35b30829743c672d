"""Health of an NVIDIA device, judged from its driver's reports: whether it may get new work.

An XID error is the driver's report of a fault. Application faults do not affect the device; after
any other fault the device is unhealthy until it is reset. Drivers from r565 on report whether the
device needs a recovery action, and that report decides: the device is unhealthy while an action is
needed. With an older driver, a reset is inferred from its effects: the device was lost and came
back, or its energy counter restarted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.devices.inventory import Health

if TYPE_CHECKING:
    from collections.abc import Sequence

# XIDs that are a program's fault, not the device's, according to NVIDIA's XID catalogue.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
# The most frequent XIDs of device faults, in the catalogue's words.
MEANINGS = {
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "memory row remapping event",
    64: "memory row remapping failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP remote call timed out",
    120: "GSP error",
}
# For this time after an error, a driver that reports no recovery action may not have decided yet.
SETTLED_NS = 10_000_000_000


@dataclass(frozen=True)
class Signs:
    """One sample of what a device and its driver report."""

    lost: str | None = None  # why the device does not respond
    xids: Sequence[int] = ()  # errors reported since the last sample
    action: str | None = None  # the recovery action; "" if none, None if not reported
    energy_millijoules: int | None = None  # since the last reset


@dataclass
class HealthWatch:
    """Tracks the health of one device from sample to sample."""

    _xids: list[int] = field(default_factory=list)  # device faults since the last reset
    _xid_ns: int = 0
    _was_asked_to_act: bool = False
    _was_lost: bool = False
    _energy_millijoules: int | None = None

    def look(self, now_ns: int, signs: Signs) -> Health:
        """The health after the sample `signs`. `now_ns` is a time of CLOCK_MONOTONIC."""
        fatal = [xid for xid in signs.xids if xid not in APPLICATION_XIDS]
        if signs.lost is not None:
            self._note(now_ns, fatal)
            self._was_lost = True
            xid = f" after {self._named()}" if self._xids else ""
            return Health("lost", signs.lost + xid)
        if self._was_reset(now_ns, signs):
            self._xids.clear()
        self._note(now_ns, fatal)
        self._was_lost = False
        self._was_asked_to_act = bool(signs.action)
        self._energy_millijoules = signs.energy_millijoules
        if signs.action:
            xid = f" after {self._named()}" if self._xids else ""
            return Health("unhealthy", f"the driver asks for {signs.action}{xid}")
        if self._xids:
            return Health("unhealthy", f"{self._named()}; it must be reset")
        return Health("ok")

    def _note(self, now_ns: int, fatal: Sequence[int]) -> None:
        if fatal:
            self._xid_ns = now_ns
            self._xids = [*self._xids, *fatal][-4:]

    def _was_reset(self, now_ns: int, signs: Signs) -> bool:
        if signs.action == "":
            return self._was_asked_to_act or now_ns - self._xid_ns >= SETTLED_NS
        if signs.action is not None:
            return False
        before, now = self._energy_millijoules, signs.energy_millijoules
        return self._was_lost or (before is not None and now is not None and now < before)

    def _named(self) -> str:
        return ", ".join(
            f"XID {xid}" + (f" ({MEANINGS[xid]})" if xid in MEANINGS else "")
            for xid in dict.fromkeys(self._xids)
        )
