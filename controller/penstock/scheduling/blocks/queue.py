"""The queue of a pool: applications that wait for blocks, or to be resumed, in their order."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.scheduling.blocks.application import Application


class Queue:
    """Priority first, then age; who has waited for `ageing_ns` counts as one priority higher.

    All age alike, so the order of two never changes while they wait.
    """

    def __init__(self, ageing_ns: int) -> None:
        self._ageing_ns = ageing_ns
        self._entries: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[str]:
        """The names of those that wait, the first to be served first."""
        return iter([name for _, name in self._entries])

    def add(self, one: Application) -> None:
        """Lets an application wait."""
        insort(self._entries, self._key(one))

    def remove(self, one: Application) -> None:
        """Takes it out again."""
        at = bisect_left(self._entries, self._key(one))
        if at == len(self._entries) or self._entries[at][1] != one.name:
            raise ValueError(f"{one.name} does not wait")
        del self._entries[at]

    def place(self, one: Application) -> int:
        """How many are served before it."""
        return bisect_left(self._entries, self._key(one))

    def first(self, most: int) -> list[str]:
        """The names of the first `most`."""
        return [name for _, name in self._entries[:most]]

    def _key(self, one: Application) -> tuple[int, str]:
        return one.since_ns - one.claim.priority * self._ageing_ns, one.name
