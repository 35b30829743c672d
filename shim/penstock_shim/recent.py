"""A tenant's recent use of a device, computed from samples of its usage page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_shim._native import ffi, lib

if TYPE_CHECKING:
    from penstock_shim._native import CData
    from penstock_shim.pages import UsageSnapshot


class RecentUse:
    """One tenant's use of one device over about the last second."""

    def __init__(self, owner: CData | None = None, words: CData | None = None) -> None:
        """Uses the samples in `words`; without arguments, `add` supplies the samples.

        Args:
            owner: Object that keeps `words` in memory.
            words: Samples that other code takes.
        """
        self._owner = owner
        self._words = ffi.new("penstock_recent *") if words is None else ffi.addressof(words)

    def add(self, at_ns: int, usage: UsageSnapshot, device: int) -> None:
        """Adds a snapshot of the tenant's usage page; `device` is the index in its grant."""
        figures = usage.devices[device]
        in_flight = any(slot.submitted[device] != slot.done[device] for slot in usage.slots)
        lib.penstock_recent_add(
            self._words, at_ns, figures.spent_ns, figures.launches, figures.waits, in_flight
        )

    @property
    def permille(self) -> int:
        """Share of the device's time that was charged over the window, in permille."""
        return int(lib.penstock_recent_permille(self._words))

    def is_active(self, at_ns: int) -> bool:
        """Returns whether the tenant had any work in the last second."""
        return bool(lib.penstock_recent_is_active(self._words, at_ns))

    def is_asking(self, at_ns: int) -> bool:
        """Returns whether launches waited recently, or work began too recently to judge by use."""
        return bool(lib.penstock_recent_is_asking(self._words, at_ns))
