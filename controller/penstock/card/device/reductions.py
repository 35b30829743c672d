"""`Reductions`: partial sums that the cards add up, together and while backward still runs."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

import torch

from penstock.card.layout import WHOLE, Partial, reducing_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.conversions import Conversions
    from penstock.card.device.own_operations import OwnOperations

BUCKET_BYTES = 4 << 20  # gradients of so many bytes are added up while the next are computed


class Reductions:
    """The partial sums of one stream. The stream's lock is held while it is called."""

    def __init__(self, operations: OwnOperations, conversions: Conversions) -> None:
        self._operations, self._conversions = operations, conversions
        self._waiting: dict[torch.dtype, list[weakref.ref[Buffer]]] = {}
        self._waiting_bytes = 0
        self._running: dict[int, dict[int, weakref.ref[Buffer]]] = {}  # by the sum's number
        self._buckets: dict[int, int] = {}  # the sum's number by the buffer's
        self._numbers = itertools.count(1)

    def note(self, made: Sequence[torch.Tensor | None]) -> None:
        """Takes the results of an operation: gradients are added up soon, as all are needed."""
        if torch._C._current_graph_task_id() == -1:
            return
        for tensor in made:
            if tensor is None:
                continue
            buffer: Buffer = tensor.untyped_storage().buffer
            if isinstance(buffer.layout, Partial):
                self._waiting.setdefault(tensor.dtype, []).append(weakref.ref(buffer))
                self._waiting_bytes += buffer.size_bytes
        if self._waiting_bytes >= BUCKET_BYTES:
            self._start()

    def _start(self) -> None:
        before = list(self._running)
        for dtype, noted in self._waiting.items():
            live = [one for ref in noted if (one := ref()) is not None]
            buffers = [one for one in live if isinstance(one.layout, Partial)]
            if not buffers:
                continue
            number = next(self._numbers)
            self._operations.call("reduce_start", [number, *(one.number for one in buffers)], dtype)
            self._running[number] = {one.number: weakref.ref(one) for one in buffers}
            for one in buffers:
                one.layout = reducing_to(WHOLE if one.layout is None else one.layout.settled)
                self._buckets[one.number] = number
        self._waiting.clear()
        self._waiting_bytes = 0
        for number in before:  # their memory is free while the next are computed
            self._finish(number)

    def finish(self, buffer: Buffer) -> None:
        """Waits on the cards for the sums of a buffer, and of those that are added up with it."""
        self._finish(self._buckets[buffer.number])

    def finish_all(self) -> None:
        """Waits on the cards for all sums, also those whose buffers nobody has any more."""
        for number in list(self._running):
            self._finish(number)

    def _finish(self, number: int) -> None:
        self._operations.call("reduce_finish", [number])
        noted = self._running.pop(number)
        for buffer_number in noted:
            del self._buckets[buffer_number]
        self._settle([one for ref in noted.values() if (one := ref()) is not None])

    def reduce(
        self, buffers: Sequence[Buffer], dtype: torch.dtype, others: Sequence[Buffer] = ()
    ) -> None:
        """Adds up the partial sums of buffers, and of those that wait, in one exchange.

        An optimizer that asks for one gradient after another gets all of them with the first.
        `others`: what the present call takes besides, as it is: its plan counts on that.
        """
        noted = (ref() for ref in self._waiting.get(dtype, ()))
        waiting = {one for one in noted if one is not None and isinstance(one.layout, Partial)}
        left = waiting.intersection(others).difference(buffers)
        self._waiting[dtype] = [weakref.ref(one) for one in left]
        self._waiting_bytes -= sum(one.size_bytes for one in waiting - left)
        together = sorted({*buffers, *(waiting - left)}, key=lambda one: one.number)
        self._operations.call("reduce", [one.number for one in together], dtype)
        self._settle(together)

    def _settle(self, buffers: Sequence[Buffer]) -> None:
        for one in buffers:
            if one.layout is not None:
                one.layout = one.layout.settled
                self._conversions.convert(one, WHOLE, one.layout)
