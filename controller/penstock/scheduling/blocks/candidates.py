"""Candidates for suspension: running applications by priority and size."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from penstock.scheduling.blocks.victims import least_cover

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.scheduling.blocks.application import Application
    from penstock.scheduling.blocks.space import Space


class Candidates:
    """Applications that may be suspended for a more urgent one.

    Those that were resumed lately are left out until they have run for their time.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        # By node, then by priority and kind: blocks that may be taken.
        self._on_node: dict[int, dict[tuple[int, str], int]] = {}
        # By priority, then by blocks: names, the oldest first.
        self._sizes: dict[int, dict[int, dict[str, None]]] = {}
        self._held: dict[int, int] = {}  # blocks by priority
        self._of_kind: dict[tuple[int, str], int] = {}  # by priority and kind
        self._safe: list[tuple[int, str]] = []  # a heap: until when
        self._waiting: dict[str, tuple[int, Application]] = {}  # safe until

    def add(self, one: Application) -> None:
        """Adds an application that runs now."""
        if not one.frees_memory:
            return
        if one.safe_until_ns:
            self._waiting[one.name] = (one.safe_until_ns, one)
            heappush(self._safe, (one.safe_until_ns, one.name))
        else:
            self._put(one)

    def discard(self, one: Application) -> None:
        """Takes out an application that ends, is suspended or changes its size."""
        if self._waiting.pop(one.name, None) is not None:
            return
        bucket = self._sizes.get(one.claim.priority, {}).get(one.blocks, {})
        if bucket.pop(one.name, "") is None:
            self._held[one.claim.priority] -= one.blocks
            self._count(one, -1)
            if not bucket:
                del self._sizes[one.claim.priority][one.blocks]

    def held_below(self, priority: int, now_ns: int, kind: str = "") -> int:
        """The blocks that may be taken from less urgent applications."""
        self._wake(now_ns)
        if kind:
            of_kind = self._of_kind.items()
            return sum(held for (other, of), held in of_kind if other < priority and of == kind)
        return sum(blocks for other, blocks in self._held.items() if other < priority)

    def below(self, priority: int, now_ns: int) -> Iterator[str]:
        """Those that are less urgent: the least urgent first, of equals the youngest."""
        self._wake(now_ns)
        for other in sorted(one for one in self._sizes if one < priority):
            for names in self._sizes[other].values():
                yield from reversed(names)

    def among(self, ones: Iterable[Application], priority: int, now_ns: int) -> list[Application]:
        """Those of `ones` that may be suspended: the least urgent first, of equals the youngest."""
        self._wake(now_ns)
        found = [
            one
            for one in ones
            if one.claim.priority < priority
            and one.name in self._sizes.get(one.claim.priority, {}).get(one.blocks, {})
        ]
        return sorted(found, key=lambda one: (one.claim.priority, -one.since_ns))

    def held_on(self, at: int, priority: int, kind: str, now_ns: int) -> int:
        """The blocks of a kind that may be taken from less urgent applications on a node."""
        self._wake(now_ns)
        held = self._on_node.get(at, {})
        return sum(
            blocks for (other, of), blocks in held.items() if other < priority and kind in {"", of}
        )

    def highest_below(self, priority: int, now_ns: int) -> int | None:
        """The highest priority below `priority` that may be suspended; None: there is none."""
        self._wake(now_ns)
        below = (other for other, held in self._held.items() if other < priority and held)
        return max(below, default=None)

    def forget_node(self, at: int) -> None:
        """Drops a node that has left."""
        for key, blocks in self._on_node.pop(at, {}).items():
            self._of_kind[key] -= blocks

    def safe_below(self, priority: int, now_ns: int) -> list[Application]:
        """Less urgent ones that were resumed lately, and may not be suspended yet."""
        self._wake(now_ns)
        return [one for _, one in self._waiting.values() if one.claim.priority < priority]

    def choose(self, priority: int, deficit: int, now_ns: int) -> list[str] | None:
        """The victims for a deficit of so many blocks; None: less urgent ones hold too few."""
        if self.held_below(priority, now_ns) < deficit:
            return None
        below = sorted(other for other in self._sizes if other < priority)
        sizes: Counter[int] = Counter()
        for other in below:
            for size, names in self._sizes[other].items():
                sizes[size] += len(names)
        cover = least_cover(sizes, deficit) or Counter()
        chosen: list[str] = []
        for size, count in cover.items():
            of_size = (self._sizes[other].get(size, {}) for other in below)
            chosen += islice((name for names in of_size for name in reversed(names)), count)
        return chosen

    def _put(self, one: Application) -> None:
        priority, blocks = one.claim.priority, one.blocks
        self._sizes.setdefault(priority, {}).setdefault(blocks, {})[one.name] = None
        self._held[priority] = self._held.get(priority, 0) + blocks
        self._count(one, 1)

    def _count(self, one: Application, sign: int) -> None:
        """Adds what an application holds to the sums of its nodes, or takes it from them."""
        for numbers, part in self._space.parts(one.runs):
            at = self._space.named[numbers.name]
            self._space.changed(at)
            held = self._on_node.setdefault(at, {})
            key = (one.claim.priority, part.card.kind)
            self._of_kind[key] = self._of_kind.get(key, 0) + sign * part.blocks
            held[key] = held.get(key, 0) + sign * part.blocks
            if not held[key]:
                del held[key]
                if not held:
                    del self._on_node[at]

    def _wake(self, now_ns: int) -> None:
        while self._safe and self._safe[0][0] <= now_ns:
            until_ns, name = heappop(self._safe)
            if name in self._waiting and self._waiting[name][0] == until_ns:
                self._put(self._waiting.pop(name)[1])
