"""Resizing: tensors get other sizes, and their storages other bytes."""

from __future__ import annotations

import torch

from penstock.card.device.buffer import Buffer
from penstock.card.device.tensors import METADATA_ONLY, extent, new_storage

_set = torch.ops.aten.set_.source_Storage_storage_offset


def resize(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    """Gives a tensor another size and a new storage with undefined content."""
    buffer = Buffer(extent(size, stride) * tensor.dtype.itemsize, None, size[0] if size else 0)
    _set.redispatch(METADATA_ONLY, tensor, new_storage(buffer), 0, size, stride)
