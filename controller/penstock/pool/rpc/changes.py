"""Changes: wakes the streams that wait for something about an application, or for any event."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Changes:
    """Who waits for which application. Used in one event loop, but for `tell`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def tell(self, names: Iterable[str]) -> None:
        """Wakes those that wait for `names`; for use in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and so have the streams
            self._loop.call_soon_threadsafe(self._wake, names)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something about `name` changes; "": any event."""
        event = asyncio.Event()
        self._waiting.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            waiting = self._waiting[name]
            waiting.discard(event)
            if not waiting:
                del self._waiting[name]

    def _wake(self, names: Iterable[str]) -> None:
        for name in names:
            for event in self._waiting.get(name, ()):
                event.set()


async def woken(event: asyncio.Event, within_s: float) -> None:
    """Waits for the event, or until the time is over; and clears it."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), within_s)
    event.clear()
