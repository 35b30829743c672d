"""Rate limit for requests of one process: a token bucket with a reserve for bursts."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """A token bucket. Waiting requests proceed in the order of their arrival."""

    def __init__(self, per_second: float, burst: int) -> None:
        """`per_second`: requests on average; `burst`: how many of them may be sent at once."""
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)  # below 0: as many requests wait
        self._at_s = time.monotonic()

    async def turn(self) -> None:
        """Returns when the next request may be sent; if cancelled, it takes no token."""
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
