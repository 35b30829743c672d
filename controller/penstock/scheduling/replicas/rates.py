"""Rate of a growing total over a time window."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Rate:
    """The rate of a growing total over a time window. A total that falls has been reset."""

    window_ns: int
    totals: deque[tuple[int, float]] = field(default_factory=deque)

    def add(self, at_ns: int, total: float) -> None:
        """Adds a total. If it is earlier or lower than the last total, a new series starts."""
        if self.totals and (at_ns <= self.totals[-1][0] or total < self.totals[-1][1]):
            self.totals.clear()
        self.totals.append((at_ns, total))
        while len(self.totals) > 2 and self.totals[1][0] <= at_ns - self.window_ns:
            self.totals.popleft()

    @property
    def per_second(self) -> float | None:
        """The rate per second; None until half a window has been sampled."""
        if len(self.totals) < 2:
            return None
        (since_ns, first), (at_ns, last) = self.totals[0], self.totals[-1]
        if at_ns - since_ns < self.window_ns // 2:
            return None
        return (last - first) * 1e9 / (at_ns - since_ns)
