"""Spare cards: they take the places of cards that are lost and do not come back."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.card.names import WAIT_VARIABLE
from penstock.card.served_cards import ServedCard
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.local_cards import LocalCard
    from penstock.card.places import CardPlace, OnCard, StartedCard

COMES_WITHIN_S = 10.0  # a service that was started again; a machine takes longer


class Spares:
    """Cards that no work is given to yet, in the order in which they are taken. Thread-safe.

    A card whose place was taken is the last one: it may come back.
    """

    def __init__(self, cards: Sequence[LocalCard | ServedCard]) -> None:
        self._lock = threading.Lock()
        self._cards: list[CardPlace] = [_hasty(one) for one in cards]

    def __len__(self) -> int:
        return len(self._cards)

    def guard(self, card: LocalCard | ServedCard) -> CardPlace:
        """A place where the card is started, or else a spare one."""
        return ReplaceableCard(_hasty(card), self) if self._cards else card

    def exchange(self, card: CardPlace) -> CardPlace:
        """A spare card for this one."""
        with self._lock:
            self._cards.append(card)
            return self._cards.pop(0)


@dataclass(frozen=True)
class ReplaceableCard:
    """A card whose place a spare one takes if it cannot be started."""

    card: CardPlace
    spares: Spares

    def __str__(self) -> str:
        return str(self.card)

    @property
    def tried_s(self) -> float:
        """See `CardPlace`."""
        return self.card.tried_s

    def start(self, name: str, on: OnCard) -> StartedCard:
        """See `CardPlace`. Raises the card's own `PenstockError` if no spare one starts either."""
        try:
            return self._started(self.card, name, on)
        except PenstockError:
            card = self.card
            for _ in range(len(self.spares)):
                card = self.spares.exchange(card)
                try:
                    return self._started(card, name, on)
                except PenstockError:
                    continue
            raise

    def other(self) -> ReplaceableCard:
        """A spare card in its place: it starts, but is lost again and again."""
        return replace(self, card=self.spares.exchange(self.card))

    def _started(self, card: CardPlace, name: str, on: OnCard) -> StartedCard:
        started = card.start(name, on)
        return replace(started, again=replace(self, card=started.again))


def _hasty(card: LocalCard | ServedCard) -> LocalCard | ServedCard:
    """The card, which is not waited for for long, unless the environment says so."""
    if isinstance(card, ServedCard) and not os.environ.get(WAIT_VARIABLE):
        return replace(card, within_s=COMES_WITHIN_S)
    return card
