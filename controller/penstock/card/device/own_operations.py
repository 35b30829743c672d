"""`OwnOperations`: what the cards do with whole buffers, such as exchanging or adding up parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.known import Known
from penstock.card.device.messages import dtype_name
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.stream import Stream

MOST_OPERATIONS = 4096  # each of other bounds, or of another number of buffers


class OwnOperations:
    """Calls of Penstock's own operations, `penstock::NAME(numbers, constant)`.

    The stream's lock is held while it is called.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._known: Known[tuple[str, int, Any], int] = Known(MOST_OPERATIONS, stream.forget)

    def call(
        self, name: str, numbers: Sequence[int], constant: Sequence[int] | torch.dtype | None = None
    ) -> None:
        """Appends a call. `numbers`: of buffers, mostly; `constant`: the same in most calls."""
        key = (name, len(numbers), constant)
        operation = self._known.find(key)
        if operation is None:
            message = _message(name, len(numbers), constant)
            operation = self._stream.define([message for _ in self._stream.links])
            self._known.add(key, operation)
        self._stream.numbers += (operation, *numbers)
        self._stream.calls += 1


def _message(name: str, count: int, constant: Sequence[int] | torch.dtype | None) -> pb.Operation:
    message = pb.Operation(name=f"penstock::{name}")
    slots = message.positional.add().list
    for _ in range(count):
        slots.items.add().integer_slot.SetInParent()
    argument = message.positional.add()
    if isinstance(constant, torch.dtype):
        argument.dtype = dtype_name(constant)
    elif constant is None:
        argument.nothing.SetInParent()
    else:
        argument.list.SetInParent()
        for one in constant:
            argument.list.items.add().integer = one
    return message
