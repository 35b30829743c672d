"""The pool's clock: wall time in nanoseconds that only grows, across restarts too."""

from __future__ import annotations

import time


class Clock:
    """Wall time, later than any time that anybody has seen or stored."""

    def __init__(self, newest_ns: int = 0) -> None:
        self._newest_ns = newest_ns

    def now_ns(self) -> int:
        """The time now, which no call has returned before: it tells claims of one name apart."""
        self._newest_ns = max(self._newest_ns + 1, time.time_ns())
        return self._newest_ns

    def is_at_least(self, newest_ns: int) -> None:
        """Makes the clock go on from a stored time, where the machine's own clock is behind."""
        self._newest_ns = max(self._newest_ns, newest_ns)
