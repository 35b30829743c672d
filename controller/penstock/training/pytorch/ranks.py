"""Ranks: the processes of a training job, and what they exchange."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Protocol

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Ranks(Protocol):
    """The processes that train together. All call the same methods in the same order."""

    rank: int
    size: int
    waited_s: float  # in all exchanges so far

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """As many numbers of each rank, in the order of ranks."""

    def stack(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, which are of one shape, in the order of ranks."""

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by the sum of all ranks' tensors."""

    def copy_first(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by that of rank 0."""

    def first_bytes(self, data: bytes) -> bytes:
        """The bytes that rank 0 has."""


class TorchRanks:
    """Ranks of torch.distributed."""

    def __init__(self, group: distributed.ProcessGroup | None = None) -> None:
        """`group`: None is the default group, which was initialized before."""
        self._group = group
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)
        self.waited_s = 0.0

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.waited_s += time.monotonic() - began_s

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """See `Ranks`."""
        return list(self.stack(torch.tensor(numbers, dtype=torch.float64)).tolist())

    def stack(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Ranks`."""
        all_ = tensor.new_empty(self.size * tensor.numel())
        with self._waiting():
            distributed.all_gather_into_tensor(
                all_, tensor.contiguous().view(-1), group=self._group
            )
        return all_.view(self.size, *tensor.shape)

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `Ranks`. One exchange for each kind of number."""
        for dtype in dict.fromkeys(one.dtype for one in tensors):
            some = [one for one in tensors if one.dtype == dtype]
            flat = torch.cat([one.reshape(-1) for one in some])
            with self._waiting():
                distributed.all_reduce(flat, group=self._group)
            for one, summed in zip(some, flat.split([one.numel() for one in some]), strict=True):
                one.copy_(summed.view_as(one))

    def copy_first(self, tensors: Sequence[torch.Tensor]) -> None:
        """See `Ranks`."""
        for dtype in dict.fromkeys(one.dtype for one in tensors):
            some = [one for one in tensors if one.dtype == dtype]
            flat = torch.cat([one.reshape(-1) for one in some])
            distributed.broadcast(flat, group_src=0, group=self._group)
            for one, first in zip(some, flat.split([one.numel() for one in some]), strict=True):
                one.copy_(first.view_as(one))

    def first_bytes(self, data: bytes) -> bytes:
        """See `Ranks`."""
        length = int(self.gather([float(len(data))])[0][0])
        body = torch.frombuffer(bytearray(data.ljust(length, b"\0")[:length]), dtype=torch.uint8)
        with self._waiting():
            distributed.broadcast(body, group_src=0, group=self._group)
        return body.numpy().tobytes()
