"""Many things that are asked again and again, each by itself: nobody waits for one that hangs."""

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
LOOK_S = 0.5  # how often it is seen which things are wanted
# One that failed is left alone for so many times as long as that took: who hangs for four seconds
# holds a place for a sixth of the time, who refuses at once is asked as often as others. Not for
# longer, though: a figure is good for thirty seconds.
LEFT_ALONE, LONGEST_ALONE_S = 10.0, 20.0


class Polling(Generic[Thing]):
    """Asks each of the things that are `wanted`, every `period_s` or as often as the bounds let it.

    The bounds are of all things together, and of the things of one group: of a namespace, whose
    things then wait for each other and hold up nobody else's.
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
        """`ask` answers why it failed; empty: it did not."""
        self.wanted: set[Thing] = set()
        self.problems: dict[Thing, str] = {}
        """Why the last answer of each is missing."""
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
        """Asks until it is cancelled."""
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
                except Exception as error:  # noqa: BLE001 - whatever somebody's answer leads to
                    why = f"{type(error).__name__}: {error}"
                took_s = time.monotonic() - began_s
            if why:
                self.problems[thing] = why
            else:
                self.problems.pop(thing, None)
            alone_s = min(LONGEST_ALONE_S, took_s * LEFT_ALONE) if why else 0.1
            wait_s = max(self._period_s - took_s, alone_s)
            # Things that were asked at the same moment do not stay in step.
            await asyncio.sleep(wait_s * random.uniform(0.9, 1.1))  # noqa: S311 - no secret

    @contextlib.asynccontextmanager
    async def _turn(self, thing: Thing) -> AsyncIterator[None]:
        if self._group is None:
            async with self._gate:
                await self._pace.turn()
                yield
            return
        group = self._group(thing)
        # Who waits for the next turn of its group holds none of the places.
        await self._paces[group].turn()
        async with self._gates[group], self._gate:
            await self._pace.turn()
            yield
