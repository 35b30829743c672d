"""The free blocks and the free memory of one node."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from penstock.scheduling.blocks.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.numbering import NodeRange


class NodeSpace:
    """Free blocks as sorted, disjoint runs that never touch; free memory by card."""

    __slots__ = ("firsts", "free", "lasts", "memory_bytes", "numbers")

    def __init__(self, numbers: NodeRange) -> None:
        self.numbers = numbers
        self.firsts: list[int] = [numbers.first] if numbers.cards else []
        self.lasts: list[int] = [numbers.last] if numbers.cards else []
        self.free = numbers.last - numbers.first + 1
        self.memory_bytes = [card.memory_bytes for card in numbers.cards]

    def size(self, kind: str = "") -> int:
        """All blocks of the node, or of one zone."""
        if not kind:
            return self.numbers.last - self.numbers.first + 1
        zone = self.numbers.zones.get(kind)
        return zone.blocks if zone else 0

    def has_free(self, run: Run) -> bool:
        """Whether all blocks of `run` are free."""
        at = bisect_right(self.firsts, run.first) - 1
        return at >= 0 and self.lasts[at] >= run.last

    def take(self, run: Run, claim: Claim) -> None:
        """Allocates `run` for `claim`. Raises ValueError if a block of it is not free."""
        at = bisect_right(self.firsts, run.first) - 1
        if at < 0 or self.lasts[at] < run.last:
            raise ValueError(f"blocks {run} of {self.numbers.name} are not free")
        first, last = self.firsts[at], self.lasts[at]
        rest = [one for one in ((first, run.first - 1), (run.last + 1, last)) if one[0] <= one[1]]
        self.firsts[at : at + 1] = [one[0] for one in rest]
        self.lasts[at : at + 1] = [one[1] for one in rest]
        self._account(run, claim, -1)

    def give_back(self, run: Run, claim: Claim) -> None:
        """Frees `run`. Raises ValueError if a block of it is free already, or not this node's."""
        at = bisect_left(self.firsts, run.first)
        before = self.lasts[at - 1] if at else self.numbers.first - 1
        after = self.firsts[at] if at < len(self.firsts) else self.numbers.last + 1
        if (run.first <= before and at) or run.last >= after or run.first < self.numbers.first:
            raise ValueError(f"blocks {run} of {self.numbers.name} are not all taken")
        joins_before = at > 0 and before + 1 == run.first
        joins_after = at < len(self.firsts) and run.last + 1 == after
        if joins_before and joins_after:
            self.lasts[at - 1] = self.lasts[at]
            del self.firsts[at], self.lasts[at]
        elif joins_before:
            self.lasts[at - 1] = run.last
        elif joins_after:
            self.firsts[at] = run.first
        else:
            self.firsts.insert(at, run.first)
            self.lasts.insert(at, run.last)
        self._account(run, claim, 1)

    def runs(self, kind: str = "") -> Iterator[Run]:
        """The free runs, or what of them lies in one zone."""
        if not kind:
            yield from map(Run, self.firsts, self.lasts)
            return
        zone = self.numbers.zones.get(kind)
        if zone is None:
            return
        at = max(0, bisect_right(self.firsts, zone.first) - 1)
        while at < len(self.firsts) and self.firsts[at] <= zone.last:
            run = Run(max(self.firsts[at], zone.first), min(self.lasts[at], zone.last))
            if run.first <= run.last:
                yield run
            at += 1

    def longest(self, kind: str = "") -> int:
        """The blocks of the longest free run."""
        if not kind:
            spans = zip(self.firsts, self.lasts, strict=True)
            return max((last - first for first, last in spans), default=-1) + 1
        return max((run.blocks for run in self.runs(kind)), default=0)

    def lowest(self, claim: Claim) -> Run | None:
        """The lowest free run that `claim` can have as a whole; None: there is none here."""
        for run in self.runs(claim.kind):
            start = run.first
            while run.last - start + 1 >= claim.blocks:
                found = self._from(Run(start, run.last), claim)
                if isinstance(found, Run):
                    return found
                start = found
        return None

    def parts(self, claim: Claim) -> Iterator[tuple[int, Run]]:
        """What a scattered `claim` can have here: index of the card, and a free run on it."""
        for run in self.runs(claim.kind):
            for part in self.numbers.parts(run):
                first = self.numbers.starts[part.at] + part.offset
                blocks = min(part.blocks, claim.blocks, self._by_memory(part.at, claim))
                if blocks >= part.card.least_blocks:
                    yield part.at, Run(first, first + blocks - 1)

    def _from(self, run: Run, claim: Claim) -> Run | int:
        """The claim's run at the start of `run`, or where to look next."""
        left, number = claim.blocks, run.first
        while left > 0:
            if number > run.last:
                return number
            part = self.numbers.part(number, run.last)
            blocks = max(min(left, part.blocks), part.card.least_blocks)
            if (
                blocks > part.blocks
                or claim.memory_of(part.card, blocks) > self.memory_bytes[part.at]
                or (claim.span == "card" and blocks < left)
            ):
                return number + part.blocks  # too little of this card: begin behind it
            left -= blocks
            number += blocks
        return Run(run.first, number - 1)

    def _by_memory(self, at: int, claim: Claim) -> int:
        """The most blocks of a card that its free memory allows to `claim`."""
        return claim.blocks_within(self.numbers.cards[at], self.memory_bytes[at])

    def _account(self, run: Run, claim: Claim, sign: int) -> None:
        self.free += sign * run.blocks
        for part in self.numbers.parts(run):
            self.memory_bytes[part.at] += sign * claim.memory_of(part.card, part.blocks)
