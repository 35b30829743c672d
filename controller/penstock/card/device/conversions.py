"""`Conversions`: buffers, or copies of them for one call, get other layouts on the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.card.device.buffer import reserve
from penstock.card.frames import FREE
from penstock.card.layout import Layout, Partial, Shard, Split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.own_operations import OwnOperations
    from penstock.card.device.stream import Stream


class Loan(NamedTuple):
    """A shard of which a call needs all bytes on each card.

    Attributes:
        argument: Which of the call's arguments it is.
        is_changed: Whether the call writes into it.
    """

    argument: int
    is_changed: bool


class StandIn(NamedTuple):
    """The copy that a call gets in the place of a shard; each card has all of it."""

    number: int


class Conversions:
    """Changes of layouts, told to the cards. The stream's lock is held while it is called."""

    def __init__(self, stream: Stream, operations: OwnOperations) -> None:
        self._stream, self._operations = stream, operations

    def convert(self, buffer: Buffer, former: Layout, layout: Layout) -> None:
        """A buffer that is whole or split comes to lie in another layout."""
        if former is layout or not buffer.size_bytes:
            return
        if isinstance(former, Split):
            self._operations.call("gather", [buffer.number, buffer.number], former.bounds)
        if isinstance(layout, Split):
            self._operations.call("scatter", [buffer.number], layout.bounds)
        elif isinstance(layout, Partial):
            self._operations.call("partial", [buffer.number])

    def lend(self, loans: Sequence[Loan], buffers: Sequence[Buffer]) -> list[Buffer | StandIn]:
        """The arguments of a call, with copies that are whole in the place of shards."""
        copies: dict[Buffer, StandIn] = {}
        for one in loans:
            buffer = buffers[one.argument]
            if buffer not in copies and isinstance(buffer.layout, Shard):
                copies[buffer] = StandIn(reserve())
                both = [buffer.number, copies[buffer].number]
                self._operations.call("gather", both, buffer.layout.bounds)
        return [copies.get(one, one) for one in buffers]

    def take_back(
        self,
        loans: Sequence[Loan],
        buffers: Sequence[Buffer],
        lent: Sequence[Buffer | StandIn],
    ) -> None:
        """Each card keeps its part of what the call has changed, and the copies are dropped."""
        if not loans:
            return
        changed = {buffers[one.argument] for one in loans if one.is_changed}
        for buffer, copy in dict(zip(buffers, lent, strict=True)).items():
            if not isinstance(copy, StandIn):
                continue
            if buffer in changed and isinstance(buffer.layout, Shard):
                self._operations.call("keep", [buffer.number, copy.number], buffer.layout.bounds)
            self._stream.numbers += (FREE, copy.number)
