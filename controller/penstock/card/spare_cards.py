"""Spare cards: they take the places of cards that are lost and do not come back."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.card.served_cards import ServedCard, comes_within_s
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.local_cards import LocalCard
    from penstock.card.places import CardPlace, OnCard, StartedCard

COMES_WITHIN_S = 10.0  # a service that was started again, before a spare card is tried


class Spares:
    """Cards that no work is given to yet, in the order in which they are taken. Thread-safe.

    A card whose place was taken is the last one: it may come back.
    """

    def __init__(self, cards: Sequence[LocalCard | ServedCard]) -> None:
        self._lock = threading.Lock()
        self._cards = list(cards)

    def __len__(self) -> int:
        return len(self._cards)

    def guard(self, card: LocalCard | ServedCard) -> CardPlace:
        """A place where the card is started, or else a spare one."""
        return ReplaceableCard(card, self) if self._cards else card

    def exchange(self, card: LocalCard | ServedCard) -> LocalCard | ServedCard:
        """A spare card for this one."""
        with self._lock:
            self._cards.append(card)
            return self._cards.pop(0)


@dataclass(frozen=True)
class ReplaceableCard:
    """A card whose place a spare one takes if it cannot be started.

    If no spare one starts either, the card is waited for as if there were none.
    """

    card: LocalCard | ServedCard
    spares: Spares

    def __str__(self) -> str:
        return str(self.card)

    @property
    def tried_s(self) -> float:
        """See `CardPlace`."""
        return self.card.tried_s

    def start(self, name: str, on: OnCard) -> StartedCard:
        """See `CardPlace`. Raises `PenstockError` if neither the card nor a spare one starts."""
        card = self.card
        for _ in range(1 + len(self.spares)):
            try:
                started = _hasty(card).start(name, on)
            except PenstockError:  # noqa: PERF203 - it takes seconds
                card = self.spares.exchange(card)
            else:
                return replace(started, again=replace(self, card=card))
        return replace(card.start(name, on), again=replace(self, card=card))

    def other(self) -> ReplaceableCard:
        """A spare card in its place: it starts, but is lost again and again."""
        return replace(self, card=self.spares.exchange(self.card))


def _hasty(card: LocalCard | ServedCard) -> LocalCard | ServedCard:
    """The card, which gives up soon if nobody serves it."""
    if not isinstance(card, ServedCard):
        return card
    return replace(card, within_s=min(COMES_WITHIN_S, comes_within_s()))
