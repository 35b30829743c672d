"""A moment on two clocks: the wall clock for records, the monotonic clock for differences."""

from __future__ import annotations

import time
from dataclasses import dataclass

from penstock.node.tenants.boot_id import boot_id


@dataclass(frozen=True)
class Moment:
    """One instant. Monotonic times are comparable only within one boot."""

    wall_ns: int  # since 1970, UTC; may jump
    mono_ns: int  # CLOCK_MONOTONIC
    boot_id: str

    def since_ns(self, earlier_mono_ns: int, earlier_boot_id: str) -> int | None:
        """Time passed since `earlier_mono_ns`; None if the machine was rebooted in between."""
        return self.mono_ns - earlier_mono_ns if earlier_boot_id == self.boot_id else None


def now() -> Moment:
    """The current moment."""
    return Moment(time.time_ns(), time.monotonic_ns(), boot_id())
