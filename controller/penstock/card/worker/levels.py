"""`Levels`: the cards of each node exchange at their board, and nodes through their leaders.

So what the cards of a node give crosses the network once for each other node, and not once for each
card. A sum is cut in lanes, each with a leader in every node: they share the work, and the many
connections of a long line reach its rate sooner than one. Threads of the leaders do it, so that it
goes on while the cards compute. What is small goes with the first lane alone.
"""

from __future__ import annotations

import functools
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from penstock.card.worker.exchange import Exchange, write
from penstock.card.worker.leaders import SMALL_BYTES, Leaders

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import torch.distributed as dist

    from penstock.card.worker.board import Board, Slot
    from penstock.card.worker.meter import Meter

_THREADS = 2  # as many sums of gradients are on their way at a time


class Levels:
    """All cards of a program on several nodes, from the view of one of them.

    Exchanges for which the boards have no room are not its business. All cards find that alike: all
    boards are of one size.
    """

    def __init__(
        self,
        card: int,
        nodes: Sequence[Sequence[int]],
        board: Board,
        gloo: dist.ProcessGroupGloo,
        meter: Meter,
    ) -> None:
        """`nodes`: the cards of each node; `board`: that of this card's node."""
        self._cards = sum(map(len, nodes))
        self._nodes, self._board, self._meter = nodes, board, meter
        self._node = next(place for place, cards in enumerate(nodes) if card in cards)
        self._own = board.own
        self._lanes = min(map(len, nodes))
        self._leaders: Leaders | None = None
        if self._own < self._lanes:
            self._leaders = Leaders(gloo, [cards[self._own] for cards in nodes], self._node)
            self._threads = ThreadPoolExecutor(_THREADS, "penstock-levels")

    def start_sum(
        self,
        own: Sequence[torch.Tensor] | None,
        count: int,
        dtype: torch.dtype,
        cause: Exception | None,
    ) -> Exchange | None:
        """Begins to add up `count` elements of each card; None: there is no room."""
        size_bytes = (count + 1) * dtype.itemsize
        slot = self._board.place(size_bytes)
        if slot is None:
            return None
        rows = slot.rows[:, :size_bytes].view(dtype)
        cause = write(rows[self._own], own) or cause
        slot.post()
        lanes = 1 if size_bytes <= SMALL_BYTES else self._lanes
        bounds = [(count + 1) * lane // lanes for lane in range(lanes + 1)]
        job = None
        if self._leaders is not None and self._own < lanes:
            first, end = bounds[self._own : self._own + 2]
            add = self._leaders.sum(end - first, dtype)
            parts = rows[:, first:end]
            job = self._threads.submit(_told, slot, lambda: add(parts, parts[self._own]))
        wait = functools.partial(self._collect, slot, rows, bounds, job)
        return Exchange(rows[self._own : self._own + 1], wait, slot.close, self._meter, cause)

    def _collect(
        self, slot: Slot, rows: torch.Tensor, bounds: Sequence[int], job: Future[None] | None
    ) -> None:
        """Takes the sum of each lane from its leader's row into this card's own row.

        A lane's leader has read its lane of this row by then.
        """
        for lane, (first, end) in enumerate(itertools.pairwise(bounds)):
            if lane != self._own:
                _wait_told(slot, lane)
                rows[self._own, first:end] = rows[lane, first:end]
        if job is not None:
            job.result()

    def start_rows(
        self,
        own: Sequence[torch.Tensor] | None,
        count: int,
        dtype: torch.dtype,
        cause: Exception | None,
    ) -> Exchange | None:
        """Begins to give `count` elements to all cards, which wait at once; None: no room."""
        size_bytes = (count + 1) * dtype.itemsize
        slot = self._board.place(self._cards * size_bytes)
        if slot is None:
            return None
        cause = write(slot.rows[self._own, :size_bytes].view(dtype), own) or cause
        slot.post()
        wait = self._relay(slot, [size_bytes] * self._cards)
        rows = slot.rows[0, : self._cards * size_bytes].view(dtype).view(self._cards, -1)
        return Exchange(rows, wait, slot.close, self._meter, cause)

    def _relay(self, slot: Slot, sizes_bytes: Sequence[int]) -> Callable[[], None]:
        """Begins to give bytes of each card to all, from the beginning of their parts of the slot.

        What comes waits until those of all cards are in the part of the first lane's leader, in the
        order of the cards. The leader does it in that call, as all cards wait at once.
        """
        if self._leaders is None or self._own != 0:
            return functools.partial(_wait_told, slot, 0)
        swap = self._leaders.swap([sum(sizes_bytes[card] for card in one) for one in self._nodes])
        own = self._nodes[self._node]

        def run() -> None:
            parts = [row[: sizes_bytes[card]] for row, card in zip(slot.rows, own, strict=True)]
            come = swap.run([torch.cat(parts)] * len(self._nodes))
            by_card: dict[int, torch.Tensor] = {}
            for cards, given in zip(self._nodes, come, strict=True):
                sizes = [sizes_bytes[card] for card in cards]
                by_card |= dict(zip(cards, given.split(sizes), strict=True))
            torch.cat([by_card[card] for card in range(self._cards)],
                      out=slot.rows[0, : sum(sizes_bytes)])  # fmt: skip

        return functools.partial(_told, slot, run)

    def gather(
        self, own: torch.Tensor | None, sizes_bytes: Sequence[int], device: torch.device
    ) -> torch.Tensor | None:
        """Bytes of all cards, one after another, each with a last one that says if it has none.

        `sizes_bytes`: of each card, with that last one. None: there is no room.

        Raises:
            RuntimeError: this card's bytes cannot be read, or it has no room for those of all.
        """
        slot = self._board.place(sum(sizes_bytes))
        if slot is None:
            return None
        card = self._nodes[self._node][self._own]
        cause = write(slot.rows[self._own, : sizes_bytes[card]], None if own is None else [own])
        slot.post()
        try:
            self._relay(slot, sizes_bytes)()
            come = slot.rows[0, : sum(sizes_bytes)].to(device, copy=True)
        finally:
            slot.close()
        if cause is not None:
            raise cause
        return come


def _told(slot: Slot, run: Callable[[], None]) -> None:
    """Does a leader's work when all cards of its node have posted, and tells them."""
    try:
        slot.wait()
        run()
    except BaseException:
        slot.tell(has_failed=True)
        raise
    slot.tell()


def _wait_told(slot: Slot, leader: int) -> None:
    if not slot.wait_told(leader):
        raise RuntimeError("a card that exchanges for its node cannot reach other nodes any more")
