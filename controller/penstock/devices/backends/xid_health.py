"""Health of an NVIDIA device from its driver's reports: whether it may get new work. Pure.

An XID error is the driver's report of a fault. Application faults do not affect the device; after
any other one the device is unhealthy until it is reset. A driver that names a recovery action (r565
and later) is trusted: while it names one the device is unhealthy, and when it names none the device
has been repaired, or needed nothing. With an older driver a reset shows by its effects: the device
was away and came back, or its energy counter restarted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.devices.inventory import Health

if TYPE_CHECKING:
    from collections.abc import Sequence

# NVIDIA's XID catalogue: a program's fault, not the device's.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
# The most frequent others, in the catalogue's words.
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
# For so long after an error, a driver that names no recovery action may not have decided yet.
SETTLED_NS = 10_000_000_000


@dataclass(frozen=True)
class Signs:
    """What a device and its driver report in one sample."""

    lost: str | None = None  # why it does not respond
    xids: Sequence[int] = ()  # reported since the last sample
    action: str | None = None  # the recovery action; "": none; None: the driver has no such report
    energy_millijoules: int | None = None  # since it was last reset


@dataclass
class HealthWatch:
    """The health of one device, from sample to sample."""

    _xids: list[int] = field(default_factory=list)  # device faults since the last reset
    _xid_ns: int = 0
    _was_asked_to_act: bool = False
    _was_lost: bool = False
    _energy_millijoules: int | None = None

    def look(self, now_ns: int, signs: Signs) -> Health:
        """The health after these signs. `now_ns`: CLOCK_MONOTONIC."""
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
