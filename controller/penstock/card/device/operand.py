"""`Operand`: a tensor argument of an operation, as the rules of layouts see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.card.layout import PARTIAL, Cut, Partial, Shard, Split, local_views

if TYPE_CHECKING:
    import torch

    from penstock.card.device.buffer import Buffer
    from penstock.card.layout import Layout


class Operand:
    """A tensor argument: its shape, where its bytes are, and how it is cut.

    Attributes:
        layout: Where its bytes are; `PARTIAL` for all sums, whatever they are to become.
        settled: Where they are once sums are added up.
        cut: Along which dimension it is split then, and how many rows each card has; None if it is
            not split, or not in a way that one dimension could describe.
        is_shard: Whether it stays split then.
        is_changed: Whether the operation writes into it.
    """

    def __init__(
        self, index: int, tensor: torch.Tensor, buffer: Buffer, *, is_changed: bool
    ) -> None:
        self.index = index
        self.dtype = tensor.dtype
        self.size = tuple(tensor.shape)
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self.is_conj, self.is_neg = tensor.is_conj(), tensor.is_neg()
        self.buffer = buffer
        self.settled = None if buffer.layout is None else buffer.layout.settled
        self.layout: Layout | None = self.settled
        if isinstance(buffer.layout, Partial):
            self.layout = PARTIAL
        self.is_shard = isinstance(self.settled, Shard)
        self.is_changed = is_changed
        self.cut: Cut | None = None
        if isinstance(self.settled, Split):
            found = local_views(self.settled, self.size, self.stride, self.offset,
                                self.dtype.itemsize)  # fmt: skip
            if found is not None:
                self.cut = found[0]

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.size)

    def __repr__(self) -> str:
        return f"{self.dtype} {list(self.size)} {self.layout}"
