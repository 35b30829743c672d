"""Places where cards can be started, and the cards that were started there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.link import CardError, CardLink, OperationError


THIS_NODE = "127.0.0.1"
TRIED_S = 60.0  # to start a lost card again


class OnCard(NamedTuple):
    """What is called when something happens on a card (`CardLink`)."""

    event: Callable[[int, memoryview], None]
    fault: Callable[[OperationError], None]
    end: Callable[[CardError], None]


@dataclass(frozen=True)
class StartedCard:
    """A card whose worker runs.

    Attributes:
        link: The connection to the worker.
        host: The address of its node for the other cards.
        speed: What it is worth to the others; None: all are measured.
        close: Ends the worker in order, waiting so many seconds for what is queued.
        kill: Ends it at once.
        again: Where it is started again if it is lost.
    """

    link: CardLink
    host: str
    speed: float | None
    close: Callable[[float], object]
    kill: Callable[[], None]
    again: CardPlace

    @property
    def pid(self) -> int:
        """The worker's pid, on its node."""
        return self.link.worker.pid


class CardPlace(Protocol):
    """Where a card can be started. Its text says so in a sentence about it."""

    @property
    def tried_s(self) -> float:
        """For how long it is tried to start the card again, once it was lost."""

    def start(self, name: str, on: OnCard) -> StartedCard:
        """Starts a worker and connects to it. Raises `PenstockError` if that fails."""
