"""`Store`: the buffers that a card has, by their numbers, as torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class Shape(NamedTuple):
    """How a tensor lies in its buffer; sizes, strides and offset in elements."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class PoisonedError(RuntimeError):
    """A buffer's content is missing, because an earlier operation has failed."""


class Store:
    """A card's buffers. A buffer is one storage; its tensors are views of that storage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._tensors: dict[int, torch.Tensor] = {}  # as the operation that made it returned it
        self._shapes: dict[int, Shape] = {}
        self._views: dict[int, dict[Shape, torch.Tensor]] = {}
        self._poisoned: dict[int, str] = {}

    def view(self, number: int, shape: Shape) -> torch.Tensor:
        """The tensor of this shape in a buffer.

        Raises:
            PoisonedError: the operation that was to make the buffer has failed.
        """
        # Shapes of one operation are the same objects at each call, so identity finds most.
        if self._shapes.get(number) is shape:
            return self._tensors[number]
        views = self._views.get(number)
        if views is not None and (known := views.get(shape)) is not None:
            return known
        return self._new_view(number, shape)

    def _new_view(self, number: int, shape: Shape) -> torch.Tensor:
        if number in self._poisoned:
            raise PoisonedError(self._poisoned[number])
        base = self._tensors.get(number)
        if base is None:
            raise PoisonedError(f"buffer {number} was never made")
        view = torch.empty(0, dtype=shape.dtype, device=self.device)
        view.set_(base.untyped_storage(), shape.offset, shape.size, shape.stride)
        self._views.setdefault(number, {})[shape] = view
        return view

    def put(self, number: int, tensor: torch.Tensor, shape: Shape) -> None:
        """Keeps a tensor that occupies its whole storage as a buffer."""
        self._tensors[number] = tensor
        self._shapes[number] = shape

    def replace(self, number: int, tensor: torch.Tensor) -> None:
        """Gives a buffer other bytes and another size, so that views made before are gone."""
        self._views.pop(number, None)
        self._shapes.pop(number, None)
        self._poisoned.pop(number, None)
        self._tensors[number] = tensor

    def allocate(self, number: int, size_bytes: int) -> torch.Tensor:
        """A new buffer with undefined content, as bytes."""
        tensor = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        self.replace(number, tensor)
        return tensor

    def content(self, number: int) -> torch.Tensor:
        """All bytes of a buffer, as a tensor of one dimension. Raises `PoisonedError`."""
        if number in self._poisoned or number not in self._tensors:
            raise PoisonedError(self._poisoned.get(number, f"buffer {number} was never made"))
        storage = self._tensors[number].untyped_storage()
        content = torch.empty(0, dtype=torch.uint8, device=self.device)
        return content.set_(storage, 0, (storage.nbytes(),), (1,))

    def poison(self, numbers: Iterable[int], why: str) -> None:
        """Marks buffers as missing; operations on them fail, and so do those on their results."""
        for number in numbers:
            self.free(number)
            self._poisoned[number] = why

    @property
    def poisoned(self) -> dict[int, str]:
        """The buffers that are missing, and why."""
        return self._poisoned

    def free(self, number: int) -> None:
        """Forgets a buffer."""
        self._tensors.pop(number, None)
        self._shapes.pop(number, None)
        self._views.pop(number, None)
        self._poisoned.pop(number, None)

    def used_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors.values())

    def __len__(self) -> int:
        return len(self._tensors)
