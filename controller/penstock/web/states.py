"""States shared by all viewers: one answer a query, made at most once a second while it is seen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.web.query import Query

    Source = Callable[[Query], dict[str, Any]]

PERIOD_S = 1.0
# Making states takes at most a tenth of the time, because it holds up the decisions of a pool.
RESTS = 9
LEAST_REST_S = 0.05


class Shared:
    """The newest state for one query, as JSON. `number` grows with each change."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.viewers = 0
        self.number = 0
        self.text = ""
        self.is_problem = False
        self.made_s = 0.0  # when it was last found to be so
        self._changed = asyncio.Event()

    def publish(self, text: str, *, is_problem: bool) -> None:
        """Takes a new state, and wakes the viewers if it differs."""
        self.made_s = time.monotonic()
        if text == self.text:
            return
        self.text, self.is_problem = text, is_problem
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer(self, number: int, within_s: float) -> bool:
        """Whether there is a newer state than `number`; waits for it for `within_s`."""
        if self.number == number:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), within_s)
        return self.number != number


class States:
    """All states that are looked at. Used in one event loop; the source runs in its own thread."""

    def __init__(self, source: Source, report: Callable[..., None], idle_s: float | None) -> None:
        """`idle_s`: how often the source is called while nobody looks; None: not at all."""
        self._source = source
        self._report = report
        self._idle_s = idle_s
        self._thread = ThreadPoolExecutor(1, "web-states")
        self._shared: dict[Query, Shared] = {}
        self._asked = asyncio.Event()

    @contextlib.contextmanager
    def watched(self, query: Query) -> Iterator[Shared]:
        """The state for `query`, which is kept up to date within the context."""
        shared = self._shared.setdefault(query, Shared(query))
        shared.viewers += 1
        self._asked.set()
        try:
            yield shared
        finally:
            shared.viewers -= 1
            if not shared.viewers:
                del self._shared[query]

    async def run(self, nobody: Query) -> None:
        """Keeps the states up to date until it is cancelled. `nobody`: made while nobody looks."""
        while True:
            self._asked.clear()
            began_s = time.monotonic()
            due = [one for one in self._shared.values() if began_s - one.made_s >= PERIOD_S]
            for one in due:
                text, is_problem = await self._made(one.query)
                one.publish(text, is_problem=is_problem)
            if not self._shared and self._idle_s is not None:
                await self._made(nobody)
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(LEAST_REST_S, took_s * RESTS))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), self._until_due())

    def close(self) -> None:
        """Ends the source's thread, once its last call has ended."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _until_due(self) -> float | None:
        if not self._shared:
            return self._idle_s
        oldest_s = min(one.made_s for one in self._shared.values())
        return max(0.0, oldest_s + PERIOD_S - time.monotonic())

    async def _made(self, query: Query) -> tuple[str, bool]:
        """The state as JSON and False, or what is wrong and True."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._json, query), False
        except PenstockError as error:
            problem = {"what": error.what, "why": error.why}
        except Exception as error:  # noqa: BLE001 - the page says it, and goes on
            self._report("web failed", reason=f"{type(error).__name__}: {error}")
            problem = {"what": "the state could not be read", "why": "the log says more"}
        return json.dumps(problem), True

    def _json(self, query: Query) -> str:
        return json.dumps(self._source(query), separators=(",", ":"))
