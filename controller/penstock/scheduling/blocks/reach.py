"""Reach of suspension: on which nodes free blocks and less urgent work are enough for a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.scheduling.blocks.tallest import Tallest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.scheduling.blocks.candidates import Candidates
    from penstock.scheduling.blocks.space import Space

MOST_KEPT = 16  # priorities and kinds whose figures are kept; the one used longest ago goes first


class Reach:
    """For each node the blocks that a claim could have there, by the claim's priority and kind.

    Figures are brought up to date when they are asked for, for the nodes that have changed since.
    """

    def __init__(self, space: Space, candidates: Candidates) -> None:
        self._space = space
        self._candidates = candidates
        self._kept: dict[tuple[int, str], tuple[Tallest, set[int]]] = {}

    def nodes(self, blocks: int, priority: int, kind: str, now_ns: int) -> Iterator[int]:
        """The nodes with at least `blocks`, by index, from the lowest on."""
        below = self._candidates.highest_below(priority, now_ns)
        if below is None:
            return
        tree = self._figures(below, kind, now_ns)
        at = tree.lowest(blocks)
        while at >= 0:
            yield at
            at = tree.lowest(blocks, at + 1)

    def _figures(self, below: int, kind: str, now_ns: int) -> Tallest:
        """The figures for claims that may suspend up to priority `below`."""
        space, key = self._space, (below, kind)
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = (Tallest(), set(range(len(space.nodes))))
            space.watchers.append(kept[1])
        self._kept[key] = kept
        if len(self._kept) > MOST_KEPT:
            _, dropped = self._kept.pop(next(iter(self._kept)))
            space.watchers = [one for one in space.watchers if one is not dropped]
        tree, changed = kept
        for at in changed:
            held = self._candidates.held_on(at, below + 1, kind, now_ns)
            tree.set(at, space.free_on(at, kind) + held if held else 0)
        changed.clear()
        return tree
