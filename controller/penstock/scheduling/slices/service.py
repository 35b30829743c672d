"""Service: tenants served by suppliers in virtual time, slice by slice, by any policy.

A supplier that becomes free takes the tenant whose turn it is: first come, first served. Of those
that are free at the same time the first in their order is the first; but a tenant stays where it
was if that supplier is free.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from penstock.scheduling.slices.lap import LapWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.scheduling.slices.lap import Lap
    from penstock.scheduling.slices.standing import Standing
    from penstock.scheduling.slices.supplier import Supplier
    from penstock.scheduling.slices.turns import Turns


class Service:
    """Serves all standings, whose `remaining_ns` and the like then say how far they got.

    Without `until_ns`, and with suppliers that stay, it ends when all work is done.
    """

    def __init__(
        self,
        standings: Iterable[Standing],
        suppliers: Sequence[Supplier],
        turns: Turns,
        slice_ns: int,
        until_ns: int | None = None,
    ) -> None:
        self._suppliers = suppliers
        self._turns = turns
        self._slice_ns = slice_ns
        self._until_ns = until_ns
        todo = (one for one in standings if one.remaining_ns)
        self._arrivals = sorted(todo, key=lambda one: (one.ready_ns, one.place), reverse=True)
        # When a supplier becomes free, and its index; whom it serves until then, or served last.
        self._ends = [(one.from_ns, at) for at, one in enumerate(suppliers)]
        heapify(self._ends)
        self._serving: list[Standing | None] = [None] * len(suppliers)
        self._idle: list[int] = []  # a heap of indices: nobody waits while one is idle
        leaving = ((one.last_ns, at) for at, one in enumerate(suppliers))
        self._leaving = sorted(((ns, at) for ns, at in leaving if ns is not None), reverse=True)
        self._gone: set[int] = set()
        self._limits_ns = [_earlier(one.until_ns, until_ns) for one in suppliers]  # of slices
        self._writers = [LapWriter(one.switch_ns) for one in suppliers]

    def run(self) -> list[tuple[Lap, ...]]:
        """The laps of each supplier, in the order in which these were given."""
        while (now_ns := self._next_ns()) is not None:
            self._leave(now_ns)
            free = self._freed(now_ns)
            while self._arrivals and self._arrivals[-1].ready_ns <= now_ns:
                self._turns.join(self._arrivals.pop(), now_ns)
            self._serve(free, now_ns)
        return [writer.laps() for writer in self._writers]

    def _next_ns(self) -> int | None:
        """When something happens next; None: nothing does, or it is over."""
        times = [self._ends[0][0]] if self._ends else []
        if self._arrivals:
            times.append(self._arrivals[-1].ready_ns)
        now_ns = min(times, default=None)
        if now_ns is None or (self._until_ns is not None and now_ns >= self._until_ns):
            return None
        return now_ns

    def _leave(self, now_ns: int) -> None:
        """Drops suppliers that take no further slice."""
        if not self._leaving or self._leaving[-1][0] > now_ns:
            return
        while self._leaving and self._leaving[-1][0] <= now_ns:
            self._gone.add(self._leaving.pop()[1])
        self._idle = [at for at in self._idle if at not in self._gone]
        heapify(self._idle)

    def _freed(self, now_ns: int) -> dict[int, None]:
        """Suppliers that become free now; whom they served waits again, if work is left."""
        free: dict[int, None] = {}
        while self._ends and self._ends[0][0] == now_ns:
            at = heappop(self._ends)[1]
            served = self._serving[at]
            if served is not None and served.remaining_ns:
                self._turns.add(served, now_ns)
            if at not in self._gone:
                free[at] = None
        return free

    def _serve(self, free: dict[int, None], now_ns: int) -> None:
        """Gives slices until nobody waits, or no supplier is free."""
        count = min(len(free) + len(self._idle), len(self._turns))
        elsewhere = []
        for _ in range(count):
            one = self._turns.take(now_ns)
            if one.last_on in free and self._serving[one.last_on] is one:
                del free[one.last_on]
                self._begin(one, one.last_on, now_ns)
            else:
                elsewhere.append(one)
        for at in free:
            heappush(self._idle, at)
        for one in elsewhere:
            self._begin(one, heappop(self._idle), now_ns)

    def _begin(self, one: Standing, at: int, now_ns: int) -> None:
        """A slice of a tenant on a supplier, after the switch if it served another one."""
        before = self._serving[at]
        start_ns = now_ns
        if before is not one and before is not None:
            start_ns += self._suppliers[at].switch_ns
        length_ns = min(self._slice_ns, one.remaining_ns)
        limit_ns = self._limits_ns[at]
        if limit_ns is not None and start_ns + length_ns > limit_ns:
            length_ns = max(0, limit_ns - start_ns)
        if length_ns:
            one.begun += 1
            self._writers[at].add(one.demand.tenant, one.round, one.begun, start_ns, length_ns)
            one.round += 1
            one.remaining_ns -= length_ns
            one.given_ns += length_ns
        one.last_on = at
        self._serving[at] = one
        heappush(self._ends, (start_ns + length_ns, at))


def _earlier(one_ns: int | None, other_ns: int | None) -> int | None:
    if one_ns is None or other_ns is None:
        return other_ns if one_ns is None else one_ns
    return min(one_ns, other_ns)
