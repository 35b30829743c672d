"""Runs of blocks: contiguous numbers, first and last included."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Run(NamedTuple):
    """Blocks `first` to `last`, both included."""

    first: int
    last: int

    @property
    def blocks(self) -> int:
        """How many they are."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first != self.last else str(self.first)


def total(runs: Iterable[Run]) -> int:
    """How many blocks `runs` have."""
    return sum(last - first + 1 for first, last in runs)


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same blocks, sorted, with adjacent runs as one. No block may be in two runs."""
    found: list[Run] = []
    for run in sorted(runs):
        if found and found[-1].last + 1 == run.first:
            found[-1] = Run(found[-1].first, run.last)
        else:
            found.append(run)
    return tuple(found)


def without(runs: Sequence[Run], taken: Sequence[Run]) -> tuple[Run, ...]:
    """The blocks of `runs` that are not in `taken`; both are sorted and do not overlap."""
    left: list[Run] = []
    for first, last in runs:
        start = first
        for other in taken:
            if other.last < start or other.first > last:
                continue
            if other.first > start:
                left.append(Run(start, other.first - 1))
            start = other.last + 1
        if start <= last:
            left.append(Run(start, last))
    return tuple(left)
