"""`Reductions`: partial sums that the cards add up, together and while backward still runs."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

import torch

from penstock.card.device.messages import dtype_name
from penstock.card.layout import PARTIAL, REDUCING, WHOLE
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.stream import Stream

BUCKET_BYTES = 4 << 20  # gradients of so many bytes are added up while the next are computed
LEAST_BYTES = 1 << 10  # smaller sums wait until somebody needs them


class Reductions:
    """The partial sums of one stream. The stream's lock is held while it is called."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._operations: dict[tuple[str, torch.dtype | None, int], int] = {}
        self._waiting: dict[torch.dtype, list[weakref.ref[Buffer]]] = {}
        self._waiting_bytes = 0
        self._buckets: dict[int, tuple[int, list[weakref.ref[Buffer]]]] = {}  # by buffer's number
        self._numbers = itertools.count(1)

    def note(self, made: Sequence[torch.Tensor | None]) -> None:
        """Takes the results of an operation: gradients are added up soon, as all are needed."""
        if torch._C._current_graph_task_id() == -1:
            return
        for tensor in made:
            if tensor is None:
                continue
            buffer: Buffer = tensor.untyped_storage().buffer
            if buffer.layout is PARTIAL and buffer.size_bytes >= LEAST_BYTES:
                self._waiting.setdefault(tensor.dtype, []).append(weakref.ref(buffer))
                self._waiting_bytes += buffer.size_bytes
        if self._waiting_bytes >= BUCKET_BYTES:
            self._start()

    def _start(self) -> None:
        for dtype, noted in self._waiting.items():
            buffers = [one for ref in noted if (one := ref()) is not None and one.layout is PARTIAL]
            if not buffers:
                continue
            number = next(self._numbers)
            self._call("reduce_start", dtype, [number, *(one.number for one in buffers)])
            refs = [weakref.ref(one) for one in buffers]
            for one in buffers:
                one.layout = REDUCING
                self._buckets[one.number] = (number, refs)
        self._waiting.clear()
        self._waiting_bytes = 0

    def finish(self, buffer: Buffer) -> None:
        """Waits on the cards for the sums of a buffer, and of those that are added up with it."""
        number, refs = self._buckets.pop(buffer.number)
        self._call("reduce_finish", None, [number])
        for ref in refs:
            one = ref()
            if one is not None:
                one.layout = WHOLE
                self._buckets.pop(one.number, None)

    def reduce(self, buffers: Sequence[Buffer], dtype: torch.dtype) -> None:
        """Adds up the partial sums of buffers, in one exchange."""
        self._call("reduce", dtype, [one.number for one in buffers])
        for one in buffers:
            one.layout = WHOLE

    def _call(self, name: str, dtype: torch.dtype | None, integers: list[int]) -> None:
        key = (name, dtype, len(integers))
        operation = self._operations.get(key)
        if operation is None:
            message = pb.Operation(name=f"penstock::{name}")
            items = message.positional.add().list.items
            for _ in integers:
                items.add().integer_slot.SetInParent()
            if dtype is not None:
                message.positional.add().dtype = dtype_name(dtype)
            operation = self._stream.define([message for _ in self._stream.links])
            self._operations[key] = operation
        self._stream.numbers += (operation, *integers)
        self._stream.calls += 1
        self._stream.appended()
