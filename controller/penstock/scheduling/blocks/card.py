"""Cards of a pool: one accelerator each, as so many blocks of 1 TFLOPS."""

from __future__ import annotations

from dataclasses import dataclass

ZONES = ("gpu", "npu", "fpga")  # the order of kinds within a node; other kinds follow, by name
LEAST_PARTS = 100  # the smallest share that a device enforces well is 1 % of it
PERMILLE = 1000


@dataclass(frozen=True)
class Card:
    """One accelerator.

    `tflops`: rated dense compute at the pool's precision. `frees_memory`: suspension frees device
    memory here (the driver's checkpoint is proven on this card).
    """

    uuid: str
    kind: str
    tflops: float
    memory_bytes: int
    model: str = ""
    frees_memory: bool = False

    @property
    def blocks(self) -> int:
        """How many blocks it has: whole TFLOPS."""
        return int(self.tflops)

    @property
    def least_blocks(self) -> int:
        """The smallest part of it that an application may hold: 1 %, rounded up."""
        return -(-self.blocks // LEAST_PARTS)

    def cores_permille(self, offset: int, blocks: int) -> int:
        """Permille of the card's time for `blocks` from the one at `offset` (0 is its first).

        It depends on the position, so that the parts of a card sum up to all of it exactly.
        """
        before = -(-PERMILLE * offset // self.blocks)
        return -(-PERMILLE * (offset + blocks) // self.blocks) - before

    def share_bytes(self, blocks: int) -> int:
        """The memory that goes with `blocks` of it: in proportion, rounded down."""
        return self.memory_bytes * blocks // self.blocks


def zone_order(kind: str) -> tuple[int, str]:
    """The sort key of a kind within its node."""
    return (ZONES.index(kind) if kind in ZONES else len(ZONES), kind)
