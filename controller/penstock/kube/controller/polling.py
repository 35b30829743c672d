"""Polling of many sources, each independently, so that a source that hangs delays no other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.kube.objects.rate_limit import Pace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

Thing = TypeVar("Thing", bound="Hashable")
LOOK_S = 0.5  # how often the set of wanted things is checked
# After a failure, the next request to a thing waits for a multiple of the failed request's
# duration. So a thing that hangs for four seconds occupies a place for a sixth of the time, and a
# thing that refuses at once is polled as often as others. The wait is limited, because a sample is
# valid for thirty seconds.
LEFT_ALONE, LONGEST_ALONE_S = 10.0, 20.0


class Polling(Generic[Thing]):
    """Polls each of the `wanted` things every `period_s`, or as often as the limits allow.

    Some limits apply to all things together, others to the things of one group. If namespaces are
    the groups, the things of one namespace wait for each other and delay no other namespace.
    """

    def __init__(
        self,
        ask: Callable[[Thing], Awaitable[str]],
        period_s: float,
        *,
        at_once: int,
        per_second: float,
        group: Callable[[Thing], Hashable] | None = None,
        group_at_once: int | None = None,
        group_per_second: float | None = None,
    ) -> None:
        """`ask` requests a thing, and returns the reason for a failure or an empty text."""
        self.wanted: set[Thing] = set()
        self.problems: dict[Thing, str] = {}
        """Why the last request to each thing failed."""
        self._ask = ask
        self._period_s = period_s
        self._gate = asyncio.Semaphore(at_once)
        self._pace = Pace(per_second, at_once)
        self._group = group
        ours = group_at_once or at_once
        self._gates: dict[Hashable, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(ours)
        )
        self._paces: dict[Hashable, Pace] = defaultdict(
            lambda: Pace(group_per_second or per_second, ours)
        )
        self._tasks: dict[Thing, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Polls until cancelled."""
        try:
            while True:
                for gone in self._tasks.keys() - self.wanted:
                    self._tasks.pop(gone).cancel()
                    self.problems.pop(gone, None)
                for new in self.wanted - self._tasks.keys():
                    self._tasks[new] = asyncio.create_task(self._follow(new))
                self._forget_groups()
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _forget_groups(self) -> None:
        if self._group is None:
            return
        for group in self._paces.keys() - set(map(self._group, self._tasks)):
            del self._paces[group]
            self._gates.pop(group, None)

    async def _follow(self, thing: Thing) -> None:
        while True:
            async with self._turn(thing):
                began_s = time.monotonic()
                try:
                    why = await self._ask(thing)
                except Exception as error:  # noqa: BLE001 - an answer may cause any error
                    why = f"{type(error).__name__}: {error}"
                took_s = time.monotonic() - began_s
            if why:
                self.problems[thing] = why
            else:
                self.problems.pop(thing, None)
            alone_s = min(LONGEST_ALONE_S, took_s * LEFT_ALONE) if why else 0.1
            wait_s = max(self._period_s - took_s, alone_s)
            # The wait is random, so that things that began at the same moment do not stay in step.
            await asyncio.sleep(wait_s * random.uniform(0.9, 1.1))  # noqa: S311 - no secret

    @contextlib.asynccontextmanager
    async def _turn(self, thing: Thing) -> AsyncIterator[None]:
        if self._group is None:
            async with self._gate:
                await self._pace.turn()
                yield
            return
        group = self._group(thing)
        # A thing that waits for its group's rate limit occupies no place in the gates.
        await self._paces[group].turn()
        async with self._gates[group], self._gate:
            await self._pace.turn()
            yield
