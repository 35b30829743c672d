"""`Leaders`: one card of each node, which exchange what their nodes give.

Gloo sends a message only when its receiver has said that it expects it. So a receiver says so as
early as it can, or each message would take two ways more: when an exchange begins, and for small
ones before that.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING

import torch

from penstock.card.worker.adding import add_up, added

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch.distributed as dist

SMALL_BYTES = 64 << 10  # up to here the time of a message does not depend on its size
_EXPECTED = 4  # small messages of each leader that are expected before their exchange begins
_TAGS = 1 << 29  # how many numbers of messages there are
_SMALL = 1 << 30  # where those of small messages begin


class Leaders:
    """The leaders of all nodes, from the view of one of them.

    All of them begin the same exchanges in the same order. Each may be run by a thread of its own.
    """

    def __init__(self, gloo: dist.ProcessGroupGloo, cards: Sequence[int], own: int) -> None:
        """`cards`: those that lead, in the order of their nodes; `own`: the place of this one."""
        self._gloo, self._cards, self._own = gloo, cards, own
        self._begun = self._begun_small = 0
        self._expected = deque(self._expect_small() for _ in range(_EXPECTED))

    def _expect_small(self) -> Swap:
        self._begun_small += 1
        tag = _SMALL + self._begun_small % _TAGS
        return Swap(self._gloo, self._cards, self._own, tag, [SMALL_BYTES] * len(self._cards))

    def swap(self, sizes_bytes: Sequence[int]) -> Swap:
        """Begins an exchange in which the leader of each node gives so many bytes."""
        if max(sizes_bytes) <= SMALL_BYTES:
            self._expected.append(self._expect_small())
            swap = self._expected.popleft()
            swap.sizes_bytes = sizes_bytes
            return swap
        self._begun += 1
        return Swap(self._gloo, self._cards, self._own, self._begun % _TAGS, sizes_bytes)

    def sum(
        self, count: int, dtype: torch.dtype
    ) -> Callable[[torch.Tensor | Sequence[torch.Tensor], torch.Tensor], None]:
        """Begins to add up so many elements of each row of all nodes.

        What comes does it, given this node's rows and the tensor for the sum, which may be a row.
        """
        nodes, size_bytes = len(self._cards), count * dtype.itemsize
        if nodes == 2 or size_bytes <= SMALL_BYTES:
            return functools.partial(_sum_directly, self.swap([size_bytes] * nodes), nodes)
        pieces = [len(one) * dtype.itemsize
                  for one in torch.empty(count, device="meta").tensor_split(nodes)]  # fmt: skip
        scatter = self.swap([pieces[self._own]] * nodes)
        return functools.partial(_sum_scattered, scatter, self.swap(pieces), nodes)


class Swap:
    """Bytes that leaders send to each other at the same time.

    Attributes:
        sizes_bytes: How many come from each.
    """

    def __init__(
        self,
        gloo: dist.ProcessGroupGloo,
        cards: Sequence[int],
        own: int,
        tag: int,
        sizes_bytes: Sequence[int],
    ) -> None:
        """Says that so many bytes, or fewer, are expected from each; see `Leaders`."""
        self._gloo, self._cards, self._own, self._tag = gloo, cards, own, tag
        self.sizes_bytes = sizes_bytes
        self._others = [place for place in range(len(cards)) if place != own]
        self._come = [torch.empty(one, dtype=torch.uint8) for one in sizes_bytes]
        self._works = [gloo.recv([self._come[one]], cards[one], tag) for one in self._others]

    def run(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Gives one of the parts to each leader; returns what comes, and one's own part.

        Raises:
            RuntimeError: another leader cannot be reached any more.
        """
        works = [self._gloo.send([parts[one].view(torch.uint8)], self._cards[one], self._tag)
                 for one in self._others]  # fmt: skip
        for work in [*works, *self._works]:
            work.wait()
        come = zip(self._come, self.sizes_bytes, strict=True)
        rows = [one[:size_bytes].view(parts[0].dtype) for one, size_bytes in come]
        rows[self._own] = parts[self._own]
        return rows


def _sum_directly(swap: Swap, nodes: int, rows: torch.Tensor, total: torch.Tensor) -> None:
    """Each gives all to all: one way, and for two nodes also the fewest bytes."""
    add_up(swap.run([added(rows)] * nodes), total)


def _sum_scattered(
    scatter: Swap, gather: Swap, nodes: int, rows: torch.Tensor, total: torch.Tensor
) -> None:
    """Each adds up a piece, and gives it to all: two ways, and the fewest bytes."""
    piece = added(scatter.run(added(rows).tensor_split(nodes)))
    torch.cat(gather.run([piece] * nodes), out=total)
