"""Claims: what an application asks of the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.model import human_memory

if TYPE_CHECKING:
    from penstock.scheduling.blocks.card import Card

Span = Literal["card", "node", "pool"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Blocks, and how urgent they are.

    `priority`: larger is more urgent. `memory_bytes`: in all, spread over the blocks evenly; None:
    in proportion to the blocks of each card. `kind`: of cards; empty: any. `span`: what the blocks
    may lie across. A process lives on one node ("card" or "node"), and is resumed there, on cards
    equal to its former ones; only what is behind a virtual card ("pool") may span nodes and kinds.
    `node`: by its name, the only one that the blocks may lie on, because the process lives there
    already; empty: any.
    """

    blocks: int
    priority: int = 0
    memory_bytes: int | None = None
    kind: str = ""
    span: Span = "pool"
    node: str = ""

    @property
    def words(self) -> str:
        """What it asks for, such as "5 gpu blocks with 2Gi of memory"."""
        kind = f"{self.kind} " if self.kind else ""
        text = f"{self.blocks} {kind}block{'s' if self.blocks != 1 else ''}"
        if not self.memory_bytes:
            return text
        return f"{text} with {human_memory(self.memory_bytes, down=True)} of memory"

    def memory_of(self, card: Card, blocks: int) -> int:
        """The memory that `blocks` on `card` need."""
        if self.memory_bytes is None:
            return card.share_bytes(blocks)
        return -(-self.memory_bytes * blocks // self.blocks)

    def blocks_within(self, card: Card, memory_bytes: int) -> int:
        """The most blocks on `card` for which `memory_bytes` are enough."""
        if self.memory_bytes is None:
            if not card.memory_bytes:
                return card.blocks
            return ((memory_bytes + 1) * card.blocks - 1) // card.memory_bytes  # rounded down
        if self.memory_bytes == 0:
            return card.blocks
        return memory_bytes * self.blocks // self.memory_bytes
