"""Ranks: the processes of a training job, and what they exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ranks(Protocol):
    """The processes that train together. All call the same methods in the same order."""

    rank: int
    size: int

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """As many numbers of each rank, in the order of ranks."""

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by the sum of all ranks' tensors."""


class TorchRanks:
    """Ranks of torch.distributed."""

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        """`group`: None is the default group, which was initialized before."""
        self._group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """See `Ranks`."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        all_ = torch.empty(self.size * len(mine), dtype=torch.float64)
        distributed.all_gather_into_tensor(all_, mine, group=self._group)
        return [one.tolist() for one in all_.view(self.size, -1)]

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `Ranks`. One exchange for each kind of number."""
        for dtype in dict.fromkeys(one.dtype for one in tensors):
            some = [one for one in tensors if one.dtype == dtype]
            flat = torch.cat([one.reshape(-1) for one in some])
            distributed.all_reduce(flat, group=self._group)
            for one, summed in zip(some, flat.split([one.numel() for one in some]), strict=True):
                one.copy_(summed.view_as(one))
