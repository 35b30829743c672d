"""How often one process asks others: so many requests a second, with a reserve for bursts."""

from __future__ import annotations

import asyncio
import time


class Pace:
    """A token bucket. Those that wait are let go on in the order in which they came."""

    def __init__(self, per_second: float, burst: int) -> None:
        """Args: `per_second`, requests on average; `burst`, how many of them may go at once."""
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)  # below 0: as many requests wait
        self._at_s = time.monotonic()

    async def turn(self) -> None:
        """Returns when the next request may go. One that is cancelled while it waits used none."""
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
