"""`Group`: all cards of a program, for operations in which each card needs the others' data."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

# A card that waits for another ends its wait when the program ends the group; this is the last
# resort if nobody does.
LONGEST_WAIT = timedelta(hours=24)


class Sum:
    """A sum over all cards that is on its way."""

    def __init__(self, tensor: torch.Tensor, work: dist.Work | None) -> None:
        self._tensor, self._work = tensor, work

    def result(self) -> torch.Tensor:
        """The sum; waits for it."""
        if self._work is not None:
            self._work.wait()
        return self._tensor


class Group:
    """The cards of a program, in their order. A group of one card needs no process group."""

    def __init__(self, card: int, cards: int, store: str = "") -> None:
        """Waits until all cards are there. `store`: "file:" and a path in a private folder."""
        self.card, self.cards = card, cards
        if cards == 1:
            return
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        meeting = dist.FileStore(store.removeprefix("file:"), cards)
        dist.init_process_group("gloo", store=meeting, rank=card, world_size=cards,
                                timeout=LONGEST_WAIT)  # fmt: skip

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """Every card gets the sum over all cards, bit for bit the same."""
        if self.cards > 1:
            dist.all_reduce(tensor)

    def start_sum(self, tensor: torch.Tensor) -> Sum:
        """Begins a sum over all cards, in the order in which all of them begin theirs."""
        return Sum(tensor, dist.all_reduce(tensor, async_op=True) if self.cards > 1 else None)

    def gather(self, own: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
        """Bytes of all cards, one after another; card i has bounds[i] to bounds[i + 1]."""
        whole = torch.empty(bounds[-1], dtype=torch.uint8, device=own.device)
        whole[bounds[self.card] : bounds[self.card + 1]] = own
        for card in range(self.cards):
            dist.broadcast(whole[bounds[card] : bounds[card + 1]], src=card)
        return whole
