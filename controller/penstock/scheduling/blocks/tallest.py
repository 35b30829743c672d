"""A tree of maxima: finds the lowest node with at least so many blocks, in logarithmic time."""

from __future__ import annotations


class Tallest:
    """One figure for each place; finds the lowest place from a start whose figure is large enough.

    An implicit binary tree of maxima in one list.
    """

    __slots__ = ("_leaves", "_tops")

    def __init__(self) -> None:
        self._leaves = 1
        self._tops = [0, 0]

    def set(self, place: int, figure: int) -> None:
        """Sets the figure of a place; places grow on demand, and begin with 0."""
        while place >= self._leaves:
            self._grow()
        tops = self._tops
        at = self._leaves + place
        if tops[at] == figure:
            return
        tops[at] = figure
        at >>= 1
        while at:
            left, right = tops[2 * at], tops[2 * at + 1]
            top = max(right, left)
            if tops[at] == top:
                return
            tops[at] = top
            at >>= 1

    def get(self, place: int) -> int:
        """The figure of a place."""
        return self._tops[self._leaves + place] if place < self._leaves else 0

    @property
    def largest(self) -> int:
        """The largest figure."""
        return self._tops[1]

    def lowest(self, least: int, start: int = 0) -> int:
        """The lowest place from `start` on with a figure of at least `least`; -1: there is none."""
        tops, leaves = self._tops, self._leaves
        if start >= leaves:
            return -1
        at = leaves + start
        while tops[at] < least:  # climb to the first subtree to the right that has one
            while at & 1:
                at >>= 1
                if at <= 1:
                    return -1
            if at <= 1:
                return -1
            at += 1
        while at < leaves:
            at *= 2
            if tops[at] < least:
                at += 1
        return at - leaves

    def _grow(self) -> None:
        leaves = self._tops[self._leaves :]
        self._leaves *= 2
        self._tops = [0] * self._leaves + leaves + [0] * len(leaves)
        for at in range(self._leaves - 1, 0, -1):
            self._tops[at] = max(self._tops[2 * at], self._tops[2 * at + 1])
