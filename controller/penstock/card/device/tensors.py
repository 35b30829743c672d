"""Tensors of the device penstock: plain torch tensors over storages that have a `Buffer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._C import DispatchKey, DispatchKeySet

from penstock.card.device.buffer import Buffer
from penstock.card.layout import Partial, Shard, shard_of

if TYPE_CHECKING:
    from penstock.card.layout import Layout

DEVICE = torch.device("penstock", 0)
# Kernels for the CPU that only touch sizes and strides work on tensors of any device.
METADATA_ONLY = DispatchKeySet(DispatchKey.CPU)
# Not a pointer to anything. Some code of torch asks whether it is 0, or compares two of them, so
# each storage has its own.
_FIRST_ADDRESS = 1 << 60

_set = torch.ops.aten.set_.source_Storage_storage_offset.redispatch
_NO_SIZE = (0,)
_new_storage = torch._C._construct_storage_from_data_pointer
_new_empty = torch._C._acc.create_empty_tensor


def check_index(device: torch.device | None) -> None:
    """Refuses another device than the first of a kind. Raises `RuntimeError`."""
    if device is not None and device.index:
        raise RuntimeError(f"there is no device {device}: all cards together are penstock:0")


def new_storage(buffer: Buffer) -> torch.UntypedStorage:
    """A storage of the device for a buffer."""
    storage = _new_storage(_FIRST_ADDRESS + (buffer.number << 8), DEVICE, buffer.size_bytes)
    storage.buffer = buffer
    return storage


def new_tensor(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    layout: Layout | None,
    size_bytes: int | None = None,
    numbers: list[int] | None = None,
    number: int | None = None,
) -> torch.Tensor:
    """A tensor over a new buffer, which the caller makes on the cards if the layout is not None.

    The buffer's number is appended to `numbers`, or it is the given one.
    """
    if size_bytes is None:
        size_bytes = extent(size, stride) * dtype.itemsize
    buffer = Buffer(size_bytes, layout, size[0] if size else 0, number)
    if isinstance(layout, Partial):
        buffer.sum_dtype = dtype
    number = buffer.number
    if numbers is not None:
        numbers.append(number)
    storage = _new_storage(_FIRST_ADDRESS + (number << 8), DEVICE, size_bytes)
    storage.buffer = buffer
    tensor = _new_empty(_NO_SIZE, dtype)
    _set(METADATA_ONLY, tensor, storage, 0, size, stride)
    return tensor


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """The buffer of a tensor of the device."""
    return tensor.untyped_storage().buffer


def extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many elements a storage for a tensor of these sizes and strides has."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def contiguous_stride(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor that is contiguous in rows."""
    stride, step = [], 1
    for n in reversed(size):
        stride.append(step)
        step *= max(n, 1)
    return tuple(reversed(stride))


def shard_for(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, speeds: tuple[float, ...]
) -> Shard | None:
    """How a tensor that has a storage of its own is kept in parts; None if it is not worth that.

    It is split along its first dimension, whose rows must lie one after another.
    """
    length = extent(size, stride)
    if not length or not size or size[0] * stride[0] != length:
        return None
    return shard_of(size[0], length * dtype.itemsize, speeds)
