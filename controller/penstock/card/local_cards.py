"""Cards of this node that the program starts itself, and the list of them in its environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.card.frames import KINDS
from penstock.card.kinds import kind_and_number
from penstock.card.link.spawned import spawn
from penstock.card.names import VARIABLE, cards_text
from penstock.card.places import THIS_NODE, StartedCard
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.card.places import OnCard


@dataclass(frozen=True)
class CardKind:
    """A card of this node, whose worker is a child of the program.

    Attributes:
        kind: The name of its adapter.
        speed: What it is worth to the others; None: all are measured.
        memory_bytes: A simulated limit of its memory.
    """

    kind: str
    speed: float | None = None
    memory_bytes: int | None = None

    def start(self, name: str, on: OnCard) -> StartedCard:
        """See `CardPlace`. Raises `CardError` if the worker does not start."""
        limit = [] if self.memory_bytes is None else ["--memory-bytes", str(self.memory_bytes)]
        card = spawn(name, "penstock.card.worker.__main__", kinds=KINDS,
                     arguments=["--kind", self.kind, *limit], on_event=on.event,
                     on_fault=on.fault, on_end=on.end)  # fmt: skip
        return StartedCard(card.link, THIS_NODE, self.speed, card.close, card.kill)


def check_cards() -> str:
    """The cards of this program, as `VARIABLE` lists them. Raises `PenstockError` if none."""
    text = cards_text()
    if not text:
        raise PenstockError(
            "this program has no card", f"${VARIABLE} is {os.environ.get(VARIABLE) or 'not set'}",
            "start it with penstock run --tflops N -- COMMAND",
        )  # fmt: skip
    return text


def parse_cards(text: str) -> list[CardKind]:
    """The cards of a list such as "cpu=1,cpu=2@64000000": KIND=SPEED@BYTES.

    Cards without speeds are measured; the bytes are a simulated limit of a card's memory.

    Raises:
        PenstockError: an item is not of this form, or some cards have a speed and others none.
    """
    kinds = [_parse(item.strip()) for item in text.split(",")]
    if len({one.speed is None for one in kinds}) > 1:
        raise PenstockError(
            f"invalid ${VARIABLE}", "some cards have a speed and others have none",
            f"write all speeds, like {VARIABLE}=cpu=1,cpu=2, or none, and they are measured",
        )  # fmt: skip
    return kinds


def _parse(item: str) -> CardKind:
    head, _, limit = item.partition("@")
    kind, _, speed = head.partition("=")
    try:
        value = float(speed) if speed else None
        memory_bytes = int(limit) if limit else None
    except ValueError:
        value, memory_bytes = 0.0, None
    is_valid = value is None or 0 < value < float("inf")
    if not kind or not is_valid or (memory_bytes is not None and memory_bytes <= 0):
        raise PenstockError(
            f"invalid card {item[:40]!r} in ${VARIABLE}", "it is not KIND, KIND=SPEED, KIND@BYTES "
            "or KIND=SPEED@BYTES with a speed and whole bytes above 0",
            f"write it like {VARIABLE}=cpu,cpu or {VARIABLE}=cpu=1,cpu=2",
        )  # fmt: skip
    kind_and_number(kind)
    return CardKind(kind, value, memory_bytes)
