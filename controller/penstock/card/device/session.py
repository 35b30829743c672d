"""`Session`: a program's cards, and everything that it has on them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.planner import Planner
from penstock.card.device.reductions import Reductions
from penstock.card.device.stream import Stream
from penstock.card.device.tensors import buffer_of
from penstock.card.frames import STATISTICS, Kind
from penstock.card.layout import PARTIAL, REDUCING, WHOLE, Layout, Split
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.cards import Cards
    from penstock.card.device.buffer import Buffer
    from penstock.card.device.plan import Plan
    from penstock.card.device.stream import Link


class Session:
    """The cards of this program.

    Attributes:
        stream: What is told to them.
        plans: Known plans, by operation, shapes and layouts.
    """

    def __init__(
        self, links: Sequence[Link], speeds: tuple[float, ...], cards: Cards | None = None
    ) -> None:
        self.cards = cards
        self.stream = Stream(links)
        self.speeds = speeds
        self.planner = Planner(self.stream, speeds)
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.reductions = Reductions(self.stream)
        self._conversions: dict[tuple[str, Sequence[int]], int] = {}

    def change_layout(self, buffer: Buffer, layout: Layout, dtype: torch.dtype) -> None:
        """Makes a buffer lie in another way on the cards."""
        former, buffer.layout = buffer.layout, layout
        if former is None:
            self._allocate(buffer, layout)
            return
        if former is WHOLE and buffer.size_bytes == 0:
            return
        if isinstance(former, Split):
            self._convert("gather", buffer, former.bounds)
            former = WHOLE
        elif former is REDUCING:
            self.reductions.finish(buffer)
            former = WHOLE
        elif former is PARTIAL and layout is not PARTIAL:
            self.reductions.reduce([buffer], dtype)
            former = WHOLE
        if isinstance(layout, Split):
            self._convert("scatter", buffer, layout.bounds)
        elif layout is PARTIAL and former is WHOLE:
            self._convert("partial", buffer)

    def change_layouts(
        self,
        changes: Sequence[tuple[int, Layout]],
        buffers: Sequence[Buffer],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Makes several buffers lie in other ways; partial sums are added up together."""
        sums: dict[torch.dtype, list[Buffer]] = {}
        for index, layout in changes:
            buffer = buffers[index]
            if buffer.layout is PARTIAL and layout is not PARTIAL:
                sums.setdefault(tensors[index].dtype, []).append(buffer)
        for dtype, group in sums.items():
            if len(group) > 1:
                self.reductions.reduce(list(dict.fromkeys(group)), dtype)
        for index, layout in changes:
            if buffers[index].layout is not layout:
                self.change_layout(buffers[index], layout, tensors[index].dtype)

    def _allocate(self, buffer: Buffer, layout: Layout) -> None:
        sizes = [buffer.size_bytes] * len(self.speeds)
        if isinstance(layout, Split):
            bounds = layout.bounds
            sizes = [high - low for low, high in zip(bounds, bounds[1:], strict=False)]
        self.stream.allocate(buffer.number, sizes)

    def _convert(self, name: str, buffer: Buffer, bounds: Sequence[int] = ()) -> None:
        key = (name, bounds)
        number = self._conversions.get(key)
        if number is None:
            message = pb.Operation(name=f"penstock::{name}")
            message.positional.add().integer_slot.SetInParent()
            message.positional.add().list.SetInParent()
            for bound in bounds:
                message.positional[1].list.items.add().integer = bound
            number = self.stream.define([message for _ in self.speeds])
            self._conversions[key] = number
        self.stream.numbers += (number, buffer.number)
        self.stream.calls += 1
        self.stream.appended()

    def synchronize(self) -> None:
        """Waits until all cards have done all work. Raises `CardError`."""
        self.stream.ask(Kind.SYNCHRONIZE)

    def used_bytes(self) -> list[int]:
        """Bytes of all buffers, for each card. Raises `CardError`."""
        return [STATISTICS.unpack(one)[1] for one in self.stream.ask(Kind.STATISTICS)]

    def description(self) -> str:
        """What the device is made of."""
        names = [str(link.worker) for link in self.stream.links]
        return f"{len(names)} {'card' if len(names) == 1 else 'cards'}: {'; '.join(names)}"

    def upload(self, source: torch.Tensor, to: torch.Tensor) -> None:
        """Fills a whole buffer with the content of a tensor on the CPU that lies like `to`."""
        buffer = buffer_of(to)
        content = memoryview(bytes_of(source))
        parts = [content] * len(self.speeds)
        if isinstance(buffer.layout, Split):
            bounds = buffer.layout.bounds
            parts = [content[low:high] for low, high in zip(bounds, bounds[1:], strict=False)]
        else:
            buffer.layout = WHOLE
        self.stream.upload(buffer.number, parts)

    def download(self, buffer: Buffer, first: int, end: int, dtype: torch.dtype) -> bytearray:
        """Bytes `first` to `end` of a buffer. Raises `CardError`."""
        with self.stream.lock:
            if buffer.layout is None or buffer.layout is PARTIAL:
                self.change_layout(buffer, WHOLE, dtype)
            split = buffer.layout if isinstance(buffer.layout, Split) else None
            return self.stream.download(buffer.number, split, first, end)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """A copy of the content of a tensor on the CPU whose elements lie without gaps."""
    if not tensor.numel():
        return b""
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return ctypes.string_at(tensor.data_ptr(), extent * tensor.element_size())
