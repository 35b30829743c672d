"""Cards of this node that the program starts itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from penstock.card.frames import KINDS
from penstock.card.link.spawned import spawn
from penstock.card.places import THIS_NODE, TRIED_S, StartedCard

if TYPE_CHECKING:
    from penstock.card.places import OnCard


@dataclass(frozen=True)
class LocalCard:
    """A card of this node, whose worker belongs to the program.

    Attributes:
        kind: The name of its adapter, and the device's number.
        speed: What it is worth to the others; None: all are measured.
        memory_bytes: A simulated limit of its memory.
        host: The address of this node for the other cards.
    """

    kind: str
    speed: float | None = None
    memory_bytes: int | None = None
    host: str = THIS_NODE
    tried_s: ClassVar[float] = TRIED_S

    def __str__(self) -> str:
        return f"card {self.kind}"

    def start(self, name: str, on: OnCard) -> StartedCard:
        """See `CardPlace`. Raises `CardError` if the worker does not start."""
        limit = [] if self.memory_bytes is None else ["--memory-bytes", str(self.memory_bytes)]
        card = spawn(name, "penstock.card.worker.__main__", kinds=KINDS,
                     arguments=["--kind", self.kind, *limit], on_event=on.event,
                     on_fault=on.fault, on_end=on.end)  # fmt: skip
        return StartedCard(card.link, self.host, self.speed, card.close, card.kill, self)
