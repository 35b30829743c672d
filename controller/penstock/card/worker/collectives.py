"""`Group`: all cards of a program, for operations in which each card needs the others' data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence


class Group:
    """The cards of a program, in their order. A group of one card needs no process group."""

    def __init__(self, card: int, cards: int) -> None:
        self.card, self.cards = card, cards

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """Every card gets the sum over all cards, bit for bit the same."""
        if self.cards > 1:
            dist.all_reduce(tensor)

    def gather(self, own: torch.Tensor, bounds: Sequence[int]) -> torch.Tensor:
        """Bytes of all cards, one after another; card i has bounds[i] to bounds[i + 1]."""
        whole = torch.empty(bounds[-1], dtype=torch.uint8, device=own.device)
        whole[bounds[self.card] : bounds[self.card + 1]] = own
        for card in range(self.cards):
            dist.broadcast(whole[bounds[card] : bounds[card + 1]], src=card)
        return whole
