"""Numbering of blocks: by node, then by kind of card, from 1; the next node gets the next range."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.scheduling.blocks.card import Card, zone_order
from penstock.scheduling.blocks.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True)
class Part:
    """Blocks of one run that lie on one card."""

    at: int  # index of the card in its node
    card: Card
    offset: int  # of the first block on its card
    blocks: int

    @property
    def cores_permille(self) -> int:
        """Its share of the card's time."""
        return self.card.cores_permille(self.offset, self.blocks)


class NodeRange:
    """The numbers of one node's blocks. They never change while it is in the pool."""

    __slots__ = ("cards", "first", "last", "name", "starts", "zones")

    def __init__(self, name: str, first: int, cards: Iterable[Card]) -> None:
        """Numbers the blocks of `cards` from `first` on; cards below one block are left out."""
        self.name = name
        self.first = first
        usable = (card for card in cards if card.blocks > 0)
        self.cards: tuple[Card, ...] = tuple(sorted(usable, key=lambda one: zone_order(one.kind)))
        self.starts: list[int] = []
        self.zones: dict[str, Run] = {}
        number = first
        for card in self.cards:
            self.starts.append(number)
            number += card.blocks
            zone = self.zones.get(card.kind)
            self.zones[card.kind] = Run(zone.first if zone else self.starts[-1], number - 1)
        self.last = number - 1

    def part(self, number: int, last: int) -> Part:
        """The part of its card from block `number` on, at most to `last`."""
        at = bisect_right(self.starts, number) - 1
        card, start = self.cards[at], self.starts[at]
        return Part(at, card, number - start, min(last, start + card.blocks - 1) - number + 1)

    def parts(self, run: Run) -> Iterator[Part]:
        """The parts of `run`, by card; it must lie in this node."""
        number = run.first
        while number <= run.last:
            part = self.part(number, run.last)
            yield part
            number += part.blocks
