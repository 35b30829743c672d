"""`Store`: the buffers that a card has, by their numbers, as torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_VIEWS = 1024  # of one buffer, which a program may cut in ever new ways


class Shape(NamedTuple):
    """How a tensor lies in its buffer; sizes, strides and offset in elements."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class PoisonedError(RuntimeError):
    """A buffer's content is missing, because an earlier operation has failed."""


class Poison(NamedTuple):
    """Why the content of a buffer is missing.

    Attributes:
        why: The operation that failed and what happened, in words.
        size_bytes: How large the buffer would be on this card.
        is_common: Whether it is missing on all cards, and all of them know that.
    """

    why: str
    size_bytes: int
    is_common: bool


class Store:
    """A card's buffers. A buffer is one storage; its tensors are views of that storage.

    Attributes:
        used_bytes: Bytes of all buffers.
        peak_bytes: The most that `used_bytes` has been.
        unwritten: Buffers with undefined content, into which nothing was written yet.
    """

    def __init__(self, device: torch.device, most_bytes: int | None = None) -> None:
        """`most_bytes`: buffers beyond it are refused, as if the card had no more memory."""
        self.device = device
        self.used_bytes = self.peak_bytes = 0
        self.unwritten: set[int] = set()
        self._most_bytes = most_bytes
        self._sizes_bytes: dict[int, int] = {}
        self._tensors: dict[int, torch.Tensor] = {}  # as the operation that made it returned it
        self._shapes: dict[int, Shape] = {}
        self._views: dict[int, dict[Shape, torch.Tensor]] = {}
        self._poisoned: dict[int, Poison] = {}

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
            raise PoisonedError(self._poisoned[number].why)
        base = self._tensors.get(number)
        if base is None:
            raise PoisonedError(f"buffer {number} was never made")
        view = torch.empty(0, dtype=shape.dtype, device=self.device)
        view.set_(base.untyped_storage(), shape.offset, shape.size, shape.stride)
        views = self._views.setdefault(number, {})
        if len(views) >= MOST_VIEWS:
            views.clear()
        views[shape] = view
        return view

    def put(self, number: int, tensor: torch.Tensor, shape: Shape) -> None:
        """Keeps a tensor that occupies its whole storage as a buffer."""
        self._count(number, tensor.untyped_storage().nbytes())
        self._tensors[number] = tensor
        self._shapes[number] = shape

    def replace(self, number: int, tensor: torch.Tensor) -> None:
        """Gives a buffer other bytes and another size, so that views made before are gone."""
        self._views.pop(number, None)
        self._shapes.pop(number, None)
        self._poisoned.pop(number, None)
        self._count(number, tensor.untyped_storage().nbytes())
        self._tensors[number] = tensor

    def _count(self, number: int, size_bytes: int) -> None:
        self.used_bytes += size_bytes - self._sizes_bytes.get(number, 0)
        self._sizes_bytes[number] = size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def check_room(self, size_bytes: int) -> None:
        """Raises `torch.OutOfMemoryError` if so many bytes more are over the card's limit."""
        if self._most_bytes is None or self.used_bytes + size_bytes <= self._most_bytes:
            return
        free_bytes = max(self._most_bytes - self.used_bytes, 0)
        raise torch.OutOfMemoryError(
            f"out of memory. Tried to allocate {_in_words(size_bytes)}. The card has a total "
            f"capacity of {_in_words(self._most_bytes)} of which {_in_words(free_bytes)} is free."
        )

    def allocate(self, number: int, size_bytes: int) -> torch.Tensor:
        """A new buffer with undefined content, as bytes."""
        self.check_room(size_bytes - self._sizes_bytes.get(number, 0))
        tensor = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        self.replace(number, tensor)
        return tensor

    def content(self, number: int) -> torch.Tensor:
        """All bytes of a buffer, as a tensor of one dimension. Raises `PoisonedError`."""
        if number in self._poisoned or number not in self._tensors:
            known = self._poisoned.get(number)
            raise PoisonedError(known.why if known else f"buffer {number} was never made")
        storage = self._tensors[number].untyped_storage()
        content = torch.empty(0, dtype=torch.uint8, device=self.device)
        return content.set_(storage, 0, (storage.nbytes(),), (1,))

    def poison(
        self, numbers: Iterable[int], why: str, *, is_common: bool, size_bytes: int | None = None
    ) -> None:
        """Marks buffers as missing; operations on them fail, and so do those on their results.

        `size_bytes`: how large they would be; None: as large as they are.
        """
        for number in numbers:
            former = self._poisoned.get(number)
            now_bytes = self.size_bytes(number) if size_bytes is None else size_bytes
            self.free(number)
            # The first reason is the one that helps.
            self._poisoned[number] = Poison(former.why if former else why, now_bytes, is_common)

    @property
    def poisoned(self) -> dict[int, Poison]:
        """The buffers that are missing, and why."""
        return self._poisoned

    def is_common(self, numbers: Iterable[int]) -> bool:
        """Whether one of these buffers is missing on all cards, and all of them know that."""
        return any(number in self._poisoned and self._poisoned[number].is_common
                   for number in numbers)  # fmt: skip

    def size_bytes(self, number: int) -> int:
        """The size of a buffer on this card, also if its content is missing; 0 if unknown."""
        known = self._poisoned.get(number)
        return known.size_bytes if known is not None else self._sizes_bytes.get(number, 0)

    def free(self, number: int) -> None:
        """Forgets a buffer."""
        self._tensors.pop(number, None)
        self._shapes.pop(number, None)
        self._views.pop(number, None)
        self._poisoned.pop(number, None)
        self.unwritten.discard(number)
        self.used_bytes -= self._sizes_bytes.pop(number, 0)

    def __contains__(self, number: int) -> bool:
        return number in self._tensors or number in self._poisoned

    def __len__(self) -> int:
        return len(self._tensors)


def _in_words(size_bytes: int) -> str:
    """Bytes in the unit that torch's messages use."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes} bytes"
