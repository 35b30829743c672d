"""Errors of the link between a program and its cards."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model import PenstockError

LOST = "tensors on it are lost: start the program again, from its last checkpoint"


class CardError(PenstockError):
    """A card is lost: its worker ended, hangs, or broke the protocol. `card` names it.

    After a card has failed, each use of its link raises an error of the same content.
    """

    def __init__(self, card: str, what: str, why: str, fix: str) -> None:
        self.card = card
        self._words = (card, what, why, fix)
        super().__init__(f"{card} {what}", why, fix, reason="unavailable")

    def again(self) -> CardError:
        """A new error of the same content: one that is raised twice would keep both stacks."""
        return CardError(*self._words)

    def and_then(self, text: str) -> CardError:
        """The same error, with what was tried afterwards."""
        card, what, why, fix = self._words
        return CardError(card, what, f"{why}; {text}", fix)

    @property
    def sentence(self) -> str:
        """What happened to which card, and why, without what to do."""
        card, what, why, _ = self._words
        return f"{card} {what}: {why}"


class OperationError(PenstockError):
    """An operation failed on a card, which goes on working.

    `type_name` and `text` are those of the exception on the card; `kind` and `position` say which
    frame failed (`position` counts the frames posted to this card, from 1).
    """

    def __init__(self, card: str, kind: str, position: int, type_name: str, text: str) -> None:
        self.card = card
        self.kind = kind
        self.position = position
        self.type_name = type_name
        self.text = text
        super().__init__(f"{kind} failed on {card}", f"{type_name}: {text}")

    def again(self) -> OperationError:
        """A new error of the same content, as `CardError.again`."""
        return OperationError(self.card, self.kind, self.position, self.type_name, self.text)


class ReplyTimeoutError(PenstockError):
    """A reply has not come in time. The card is alive, and the reply can still be waited for."""

    def __init__(self, what: str, why: str) -> None:
        fix = "wait longer, or see on the card what keeps it busy"
        super().__init__(what, why, fix, reason="timed-out")


class ProtocolError(Exception):
    """The bytes of the other side break the protocol. It becomes the `why` of a `CardError`."""


class RefusedError(ProtocolError):
    """The other side ended the handshake and said why; the text is what it said."""


@dataclass(frozen=True)
class Worker:
    """A card's worker, as it describes itself in its hello."""

    pid: int
    node: str
    device: str
    torch_version: str
    release: str  # of Penstock

    def __str__(self) -> str:
        return f"{self.device} of node {self.node}, pid {self.pid}"
