"""`Leaders`: one card of each node, which exchange what their nodes give.

Gloo sends a message only when its receiver has said that it expects it, which takes one way more. A
receiver may expect more bytes than come. So leaders expect messages before their exchange begins,
of the sizes of which there were some before: 64 KiB and its doubles.
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
_EARLY = 2  # exchanges of a size whose messages are expected before they begin
_TAG_BITS = 25  # of the number of an exchange of a size; above them is the size


class Leaders:
    """The leaders of all nodes, from the view of one of them.

    All of them begin the same exchanges in the same order. Each may be run by a thread of its own.
    """

    def __init__(self, gloo: dist.ProcessGroupGloo, cards: Sequence[int], own: int) -> None:
        """`cards`: those that lead, in the order of their nodes; `own`: the place of this one."""
        self._gloo, self._cards, self._own = gloo, cards, own
        self._begun: dict[int, int] = {}  # by doublings of the small size
        self._expected: dict[int, deque[Swap]] = {}
        self._expect(0)

    def _expect(self, doublings: int) -> deque[Swap]:
        """What is expected of a size, which is one more than `_EARLY`."""
        expected = self._expected.setdefault(doublings, deque())
        while len(expected) <= _EARLY:
            number = self._begun[doublings] = self._begun.get(doublings, 0) + 1
            tag = doublings << _TAG_BITS | number % (1 << _TAG_BITS)
            expected.append(Swap(self._gloo, self._cards, self._own, tag, SMALL_BYTES << doublings))
        return expected

    def swap(self, sizes_bytes: Sequence[int], most_bytes: int | None = None) -> Swap:
        """Begins an exchange in which the leader of each node gives so many bytes to this one.

        `most_bytes`: the most that any leader gives to any, if that is not the same for all.
        """
        most_bytes = most_bytes or max(sizes_bytes)
        swap = self._expect(max(0, (most_bytes - 1) // SMALL_BYTES).bit_length()).popleft()
        swap.sizes_bytes = sizes_bytes
        return swap

    def sum(
        self, count: int, dtype: torch.dtype
    ) -> Callable[[torch.Tensor | Sequence[torch.Tensor], torch.Tensor], None]:
        """Begins to add up so many elements of each row of all nodes.

        What comes does it, given this node's rows and the tensor for the sum, which may be a row.
        """
        nodes = len(self._cards)
        size_bytes = count * dtype.itemsize
        if nodes == 2 or size_bytes <= SMALL_BYTES:
            return functools.partial(_sum_directly, self.swap([size_bytes] * nodes), nodes)
        pieces = [len(one) * dtype.itemsize
                  for one in torch.empty(count, device="meta").tensor_split(nodes)]  # fmt: skip
        scatter = self.swap([pieces[self._own]] * nodes, max(pieces))
        return functools.partial(_sum_scattered, scatter, self.swap(pieces), nodes)


class Swap:
    """Bytes that leaders send to each other at the same time.

    Attributes:
        sizes_bytes: How many come from each.
    """

    def __init__(
        self, gloo: dist.ProcessGroupGloo, cards: Sequence[int], own: int, tag: int, most_bytes: int
    ) -> None:
        """Says that so many bytes, or fewer, are expected from each; see `Leaders`."""
        self._gloo, self._cards, self._own, self._tag = gloo, cards, own, tag
        self.sizes_bytes: Sequence[int] = [most_bytes] * len(cards)
        self._others = [place for place in range(len(cards)) if place != own]
        self._come = [torch.empty(0 if one == own else most_bytes, dtype=torch.uint8)
                      for one in range(len(cards))]  # fmt: skip
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
