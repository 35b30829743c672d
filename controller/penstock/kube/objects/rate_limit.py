"""Rate limit for the requests of one process: a token bucket that allows bursts."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """A token bucket. Waiting requests proceed in the order in which they arrived."""

    def __init__(self, per_second: float, burst: int) -> None:
        """Allows `per_second` requests on average, and up to `burst` requests at once."""
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)  # a negative value is the number of waiting requests
        self._at_s = time.monotonic()

    async def turn(self) -> None:
        """Waits until the next request may be sent. A cancelled call uses no token."""
        now_s = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._per_second)
        self._at_s = now_s
        self._tokens -= 1
        if self._tokens >= 0:
            return
        try:
            await asyncio.sleep(-self._tokens / self._per_second)
        except asyncio.CancelledError:
            self._tokens += 1
            raise
