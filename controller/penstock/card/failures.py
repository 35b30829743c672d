"""`Failures`: what has failed on a program's cards, until the program is told."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from penstock.card.link import CardError

_MOST = 64  # failures that are kept; those that follow are mostly consequences
_CONSEQUENCE = "AbsentError"  # a card says that another one has failed


class Failures:
    """The failures of all cards of one start. Threads of the links add to it.

    Attributes:
        is_set: Whether the program is to be told of something, at its next use of the device.
        count: How many failures were noted so far.
        lost: Why no card can be used any more; None as long as they can.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.count = 0
        self.lost: CardError | None = None
        self._lock = threading.Lock()
        self._noted: list[tuple[str, pb.Failure]] = []  # the last ones, of which nobody was told

    def add(self, card: str, body: memoryview) -> None:
        """Notes what a worker reports of an operation."""
        self.note(card, pb.Failure.FromString(bytes(body)))

    def note(self, card: str, failure: pb.Failure) -> None:
        """Notes what has failed on a card."""
        with self._lock:
            if len(self._noted) < _MOST:
                self._noted.append((card, failure))
                self.count += 1
            self.is_set = True

    def lose(self, error: CardError) -> bool:
        """Notes that a card is lost; the first one is what the program is told of."""
        with self._lock:
            is_first = self.lost is None
            self.lost = self.lost or error
            self.is_set = True
            return is_first

    def follow(self, former: Failures, since: int) -> None:
        """Takes over from `former`, after cards have executed all frames since a snapshot again.

        `since`: how many failures had been noted when the snapshot was taken. Later ones have
        occurred here again; the program gets those that it has not got yet. All others of `former`
        followed from the loss of a card: its peers could not exchange data with it.
        """
        with self._lock, former._lock:
            was_told = former.count - len(former._noted)
            before = former._noted[: max(0, since - was_told)]
            again = len(self._noted)
            self._noted = before + self._noted[max(0, was_told - since) :]
            self.count = since + again
            self.is_set = bool(self._noted) or self.lost is not None

    def take(self) -> tuple[str, pb.Failure] | None:
        """The failure that was the cause, with the card's name, once; None if there is none."""
        with self._lock:
            noted, self._noted = self._noted, []
            self.is_set = self.lost is not None
        causes = [one for one in noted if one[1].type != _CONSEQUENCE]
        return next(iter((*causes, *noted)), None)
