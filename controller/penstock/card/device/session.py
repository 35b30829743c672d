"""`Session`: a program's cards, and everything that it has on them."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.card.cards import start_cards
from penstock.card.device.balance import Balance
from penstock.card.device.buffer import live_buffers
from penstock.card.device.conversions import Conversions
from penstock.card.device.known import Known
from penstock.card.device.move import contents, cut_anew, fill, parts_of
from penstock.card.device.own_operations import OwnOperations
from penstock.card.device.passes import Passes
from penstock.card.device.planner import Planner
from penstock.card.device.recovery import Recovery, recovers
from penstock.card.device.reductions import Reductions
from penstock.card.device.sharding import Sharding
from penstock.card.device.stream import Stream
from penstock.card.device.tensors import buffer_of, extent
from penstock.card.frames import Kind, Statistics, pack_trace, unpack_statistics
from penstock.card.layout import WHOLE, Layout, Partial, Reducing, Split
from penstock.card.link import CardError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import torch

    from penstock.card.cards import Cards
    from penstock.card.device.buffer import Buffer
    from penstock.card.device.plan import Plan
    from penstock.card.places import CardPlace

# A program of ever new shapes, such as lengths of sequences, would fill its memory and that of its
# workers: a plan takes about 2 KiB in the program and 7 KiB in each worker. A training step of a
# model has some hundreds to a few thousand.
MOST_PLANS = 16384
MOST_DYNAMIC = 2048


class Session:
    """The cards of this program.

    Attributes:
        stream: What is told to them.
        plans: Known plans, by operation, shapes and layouts.
        dynamic: The numbers of known operations whose results' shapes depend on data, likewise.
        sharding: Which parameters are kept in parts.
        balance: What adapts the cards' speeds.
        passes: What is seen of the program's backward passes.
    """

    def __init__(self, cards: Cards) -> None:
        self.cards = cards
        self.stream = Stream(cards)
        if recovers():
            self.stream.recovery = Recovery(self)
        self.speeds = cards.speeds
        self.planner = Planner(self.stream, cards.speeds)
        self.plans: Known[tuple[Any, ...], Plan] = Known(MOST_PLANS, self._forget_plans)
        self.dynamic: Known[tuple[Any, ...], int] = Known(MOST_DYNAMIC, self.stream.forget)
        self._begin_operations()
        self.sharding = Sharding(self)
        self.balance = Balance(self)
        self.passes = Passes(self)

    def _forget_plans(self, plans: Collection[Plan]) -> None:
        self.stream.forget([one.number for one in plans])

    def _begin_operations(self) -> None:
        """The cards know none of Penstock's own operations yet."""
        operations = OwnOperations(self.stream)
        self.conversions = Conversions(self.stream, operations)
        self.reductions = Reductions(operations, self.conversions)

    def change_layout(self, buffer: Buffer, layout: Layout, dtype: torch.dtype) -> None:
        """Makes a buffer lie in another way on the cards."""
        with self.stream.whole():
            self._change_layout(buffer, layout, dtype)

    def _change_layout(self, buffer: Buffer, layout: Layout, dtype: torch.dtype) -> None:
        if isinstance(buffer.layout, Partial) and not isinstance(layout, Partial):
            self.reductions.reduce([buffer], dtype)
        elif isinstance(buffer.layout, Reducing):
            self.reductions.finish(buffer)
        former, buffer.layout = buffer.layout, layout
        if isinstance(layout, Partial):
            buffer.sum_dtype = dtype
        if former is None:
            self._allocate(buffer, layout)
        elif not isinstance(former, Partial):
            self.conversions.convert(buffer, former, layout)

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
            if isinstance(buffer.layout, Partial) and not isinstance(layout, Partial):
                sums.setdefault(tensors[index].dtype, []).append(buffer)
        for dtype, group in sums.items():
            self.reductions.reduce(group, dtype, others=buffers)
        for index, layout in changes:
            if buffers[index].layout is not layout:
                self.change_layout(buffers[index], layout, tensors[index].dtype)

    def _allocate(self, buffer: Buffer, layout: Layout) -> None:
        sizes = [buffer.size_bytes] * len(self.speeds)
        if isinstance(layout, Split):
            sizes = [high - low for low, high in pairwise(layout.bounds)]
        self.stream.allocate(buffer.number, sizes)

    def replace_cards(self, places: Sequence[CardPlace]) -> None:
        """Moves the program to other cards, which are started; the former ones are ended.

        Raises:
            PenstockError: a card could not be started or was lost. The former ones stay in use.
            RuntimeError: an operation has failed before, or a new card has too little memory.
        """
        cards = start_cards(places)
        with cards.ended_on_error(), self.stream.lock:
            self.stream.check()
            layouts = fill(cards, contents(self), self.speeds)
            self._end_trace()
            former = self.cards
            self._take(cards, layouts)
        threading.Thread(target=former.close, name="penstock-close", daemon=True).start()

    @contextlib.contextmanager
    def away(self) -> Iterator[Callable[[Sequence[CardPlace]], None]]:
        """Takes everything from the cards into the program's memory, and ends the cards.

        Whoever uses the device meanwhile waits. What this gives goes on with other cards, which are
        started; it is to be called until one call succeeds.

        Raises:
            PenstockError: a card is lost, or could not be started.
            RuntimeError: a new card has too little memory.
        """
        with self.stream.lock:
            cause = self.stream.settle()
            held = dict(contents(self))
            self._end_trace()
            self.cards.close()

            def go_on(places: Sequence[CardPlace]) -> None:
                cards = start_cards(places)
                with cards.ended_on_error():
                    layouts = fill(cards, held.items(), self.speeds)
                if cause is not None:
                    cards.failures.note(*cause)
                self._take(cards, layouts)

            yield go_on

    def _end_trace(self) -> None:
        """The cards, which are to be ended, send the events that they have still to themselves."""
        if self.cards.on_trace is not None:
            with contextlib.suppress(CardError):
                self.stream.ask(Kind.TRACE, pack_trace(False))

    def _take(self, cards: Cards, layouts: dict[Buffer, Layout]) -> None:
        """Goes on with cards that have all buffers, in these layouts."""
        for buffer, layout in layouts.items():
            buffer.layout = layout
        self.cards = cards
        self.set_speeds(cards.speeds)
        self.stream.take(cards)
        self._begin_operations()
        self.sharding.take()
        self.balance.restart()
        if self.stream.recovery is not None:
            self.stream.recovery.begin_anew()

    def replaced(self, cards: Cards) -> None:
        """Goes on with cards that know all operations, and have all buffers as they lie."""
        self.cards = cards
        self.stream.replace(cards)
        self.balance.restart()

    def step_ended(self) -> None:
        """An optimizer has ended a step. Raises `CardError` if a card is lost."""
        self.balance.step()
        if self.stream.recovery is not None:
            with self.stream.lock:
                self.stream.recovery.step()

    def set_speeds(self, speeds: tuple[float, ...]) -> None:
        """Splits new tensors by other speeds.

        Tensors that are split keep their layout. If they meet new ones, they are gathered.
        """
        with self.stream.lock:
            self.speeds = speeds
            self.planner.speeds = speeds
            self.plans.clear()
            self.dynamic.clear()

    def rebalance(self, speeds: tuple[float, ...]) -> None:
        """Splits all tensors by other speeds, also those that are split now."""
        with self.stream.lock, self.stream.whole():
            former_speeds = self.speeds
            self.set_speeds(speeds)
            for buffer in live_buffers():
                if isinstance(former := buffer.layout, Split):
                    buffer.layout = cut_anew(buffer, former, former_speeds, speeds)
                    self.conversions.convert(buffer, former, buffer.layout)

    def synchronize(self) -> None:
        """Waits until all cards have done all work. Raises `CardError`."""
        self.stream.ask(Kind.SYNCHRONIZE)

    def statistics(self) -> list[Statistics]:
        """The memory in use of each card. Raises `CardError`."""
        return [unpack_statistics(one) for one in self.stream.ask(Kind.STATISTICS)]

    def description(self) -> str:
        """What the device is made of."""
        names = [str(link.worker) for link in self.stream.links]
        return f"{len(names)} {'card' if len(names) == 1 else 'cards'}: {'; '.join(names)}"

    def upload(self, source: torch.Tensor, to: torch.Tensor) -> None:
        """Fills a whole buffer with the content of a tensor on the CPU that lies like `to`."""
        buffer = buffer_of(to)
        content = memoryview(bytes_of(source))
        with self.stream.lock:  # the cards may be replaced meanwhile
            if isinstance(buffer.layout, Reducing):
                self.reductions.finish(buffer)  # what comes later would take the content's place
            if not isinstance(buffer.layout, Split):
                buffer.layout = WHOLE
            self.stream.upload(buffer.number, parts_of(content, buffer.layout, len(self.speeds)))

    def download(self, buffer: Buffer, first: int, end: int, dtype: torch.dtype) -> bytearray:
        """Bytes `first` to `end` of a buffer. Raises `CardError`."""
        with self.stream.lock:
            settled = WHOLE if buffer.layout is None else buffer.layout.settled
            if buffer.layout is not settled:
                self.change_layout(buffer, settled, dtype)
            split = buffer.layout if isinstance(buffer.layout, Split) else None
            return self.stream.download(buffer.number, split, first, end)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """A copy of the content of a tensor on the CPU whose elements lie without gaps."""
    if not tensor.numel():
        return b""
    count = extent(tuple(tensor.shape), tensor.stride())
    return ctypes.string_at(tensor.data_ptr(), count * tensor.element_size())
