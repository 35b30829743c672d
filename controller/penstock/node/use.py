"""Recent use of a device by each tenant, from samples of their usage pages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_shim.pages import UsageSnapshot

WINDOW_NS = 1_000_000_000
# How long one wait counts as asking. Longer than the window of use: while use still averages over
# slower times, a tenant that was just given more must not be taken for one that needs no more.
ASKING_NS = 2 * WINDOW_NS


@dataclass(frozen=True)
class _Sample:
    at_ns: int
    spent_ns: int
    launches: int


@dataclass
class RecentUse:
    """What one tenant did on one device over about the last second."""

    samples: deque[_Sample] = field(default_factory=deque)
    waits: int = -1
    waited_at_ns: int = 0
    active_at_ns: int = 0
    active_since_ns: int = 0

    def add(self, at_ns: int, usage: UsageSnapshot, device: int) -> None:
        """Takes in a snapshot of the tenant's usage page; `device` is the index of its grant."""
        figures = usage.devices[device]
        in_flight = any(slot.submitted[device] != slot.done[device] for slot in usage.slots)
        if self.waits >= 0 and figures.waits != self.waits:
            self.waited_at_ns = at_ns
        self.waits = figures.waits
        last = self.samples[-1] if self.samples else None
        if in_flight or (
            last and (figures.launches, figures.spent_ns) != (last.launches, last.spent_ns)
        ):
            if not self.is_active(at_ns):
                self.active_since_ns = at_ns
            self.active_at_ns = at_ns
        self.samples.append(_Sample(at_ns, figures.spent_ns, figures.launches))
        while len(self.samples) > 2 and self.samples[1].at_ns <= at_ns - WINDOW_NS:
            self.samples.popleft()

    @property
    def permille(self) -> int:
        """Share of the device's time charged over the window."""
        if len(self.samples) < 2:
            return 0
        first, last = self.samples[0], self.samples[-1]
        elapsed = last.at_ns - first.at_ns
        return (
            max(0, min(1000, (last.spent_ns - first.spent_ns) * 1000 // elapsed)) if elapsed else 0
        )

    def is_active(self, at_ns: int) -> bool:
        """Whether there was any work in the last second."""
        return bool(self.active_at_ns) and at_ns - self.active_at_ns <= WINDOW_NS

    def is_asking(self, at_ns: int) -> bool:
        """Whether its launches had to wait lately, or it has just begun and use tells nothing."""
        began = self.is_active(at_ns) and at_ns - self.active_since_ns <= WINDOW_NS
        return began or (bool(self.waited_at_ns) and at_ns - self.waited_at_ns <= ASKING_NS)
