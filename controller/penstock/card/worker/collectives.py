"""`Group`: all cards of a program, for operations in which each card needs the others' data."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from penstock.card.worker.adding import added
from penstock.card.worker.board import Board, NoBoardError, nodes_of
from penstock.card.worker.exchange import AbsentError, Exchange, write
from penstock.card.worker.leaders import SMALL_BYTES
from penstock.card.worker.levels import Levels
from penstock.card.worker.meeting import LONGEST_WAIT, Meeting
from penstock.card.worker.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BOARD = "penstock/board/"  # and the card's number: a key of what cards say
_DIRECT = (
    1 << 30
)  # where numbers of messages begin that cards send to all; `Leaders` has those before


class Group:
    """The cards of a program, in their order. A group of one card needs no connections.

    All cards make the same exchanges in the same order. A card that has failed must not leave one
    out, or all others would wait for it: it takes part with zeros. Cards of one node exchange at a
    `Board`, those of several nodes of which one has several cards at `Levels`, as long as there is
    room; all others through gloo.

    Attributes:
        exchanges: How many exchanges this card has begun.
        meter: What counts their bytes, and the time for which this card waits in them.
    """

    def __init__(self, card: int, cards: int, host: str) -> None:
        """Begins to listen for the other cards, at an address of this node."""
        self.card, self.cards = card, cards
        self.exchanges = 0
        self.meter = Meter()
        self._meeting = Meeting()
        self._board: Board | None = None
        self._levels: Levels | None = None
        self._gloo: dist.ProcessGroupGloo | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        if cards > 1:
            with contextlib.suppress(NoBoardError):
                self._board = Board()
            self._thread = threading.Thread(target=self._connect, args=(host,), daemon=True)
            self._thread.start()

    def _connect(self, host: str) -> None:
        try:
            options = dist.ProcessGroupGloo._Options()
            options._timeout = LONGEST_WAIT
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
            self._gloo = dist.ProcessGroupGloo(self._meeting, self.card, self.cards, options)
        except Exception as error:  # noqa: BLE001 - `said` and `meet` raise it
            self._error = error
            self._meeting.wait([])

    def said(self) -> dict[str, bytes]:
        """Where this card listens, for `meet` of the others. Raises `RuntimeError` if nowhere."""
        said = self._meeting.own() if self._thread is not None else {}
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        if self._board is not None:
            said[f"{_BOARD}{self.card}"] = self._board.said()
        return said

    def meet(self, said: Mapping[str, bytes]) -> None:
        """Connects to all others, given where all listen. Raises `RuntimeError` if it cannot."""
        self._meeting.add_said(said)
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        if self._gloo is not None:
            self._meet_at_boards(self._gloo, said)

    def _meet_at_boards(self, gloo: dist.ProcessGroupGloo, said: Mapping[str, bytes]) -> None:
        """All cards use the boards of their nodes, or none does."""
        boards = {int(key.removeprefix(_BOARD)): value
                  for key, value in said.items() if key.startswith(_BOARD)}  # fmt: skip
        board, self._board = self._board, None
        nodes, has_met = [], False
        with contextlib.suppress(NoBoardError):
            nodes = nodes_of(boards, self.cards)
            if board is not None and len(nodes) < self.cards:
                own = next(cards for cards in nodes if self.card in cards)
                board.meet(own.index(self.card), [boards[card] for card in own])
                has_met = True
        if board is not None:
            board.end()
        with self.rows(torch.tensor([has_met], dtype=torch.uint8)) as rows:
            have_met = rows.all().item()
        if board is None or not have_met:
            return
        if len(nodes) == 1:
            self._board = board
        else:
            self._levels = Levels(self.card, nodes, board, gloo, self.meter)

    def rows(self, *own: torch.Tensor) -> Exchange:
        """Begins to give something small to all cards; a card's row is its tensors, flat.

        It goes to all cards at once, so it must be small: a ring would wait for each card in turn.
        """
        flat = [one.reshape(-1).cpu() for one in own]
        return self._start(flat, sum(map(len, flat)), flat[0].dtype, is_small=True)

    def rows_without(self, count: int, dtype: torch.dtype, cause: Exception) -> None:
        """Takes part in `rows` of `count` elements, or in `sum`, without data."""
        exchange = self._start(None, count, dtype, cause, is_small=True)
        with contextlib.suppress(type(cause)), exchange:
            pass

    def sum(self, own: torch.Tensor) -> torch.Tensor:
        """The sum of something small; waits for it. Raises `AbsentError`."""
        with self.rows(own) as rows:
            return added(rows).to(own.device).view(own.shape)

    def start_sum(self, own: Sequence[torch.Tensor]) -> Exchange:
        """Begins to add up flat tensors, in the order in which all cards begin theirs.

        What comes is to be `added`; a row is the tensors one after another.
        """
        return self._start(own, sum(map(len, own)), own[0].dtype)

    def start_without(self, count: int, dtype: torch.dtype, cause: Exception) -> Exchange:
        """Takes part in a sum of `count` elements without data."""
        return self._start(None, count, dtype, cause)

    def _start(
        self,
        own: Sequence[torch.Tensor] | None,
        count: int,
        dtype: torch.dtype,
        cause: Exception | None = None,
        *,
        is_small: bool = False,
    ) -> Exchange:
        """Begins an exchange of `count` elements of each card."""
        self.exchanges += 1
        if self._levels is not None:
            start = self._levels.start_rows if is_small else self._levels.start_sum
            exchange = start(own, count, dtype, cause)
            if exchange is not None:
                return exchange
        size_bytes = (count + 1) * dtype.itemsize
        slot = None if self._board is None else self._board.place(size_bytes)
        if slot is not None:
            rows = slot.rows[:, :size_bytes].view(dtype)
            cause = write(rows[self.card], own) or cause
            slot.post()
            return Exchange(rows, slot.wait, slot.close, self.meter, cause)
        try:
            device = "cpu" if own is None else own[0].device
            given = torch.empty(count + 1, dtype=dtype, device=device)
        except RuntimeError as error:  # of memory on the device
            own, cause, given = None, error, torch.empty(count + 1, dtype=dtype)
        cause = write(given, own) or cause
        if self._gloo is None:
            return Exchange(given.view(1, -1), _nothing, _nothing, self.meter, cause)
        if is_small or (size_bytes <= SMALL_BYTES and given.device.type == "cpu"):
            return self._start_direct(self._gloo, given, cause)
        wait = functools.partial(_wait, [self._gloo.allreduce([given])])
        return Exchange(given.view(1, -1), wait, _nothing, self.meter, cause)

    def _start_direct(
        self, gloo: dist.ProcessGroupGloo, given: torch.Tensor, cause: Exception | None
    ) -> Exchange:
        """Sends a small tensor to all cards at once: a ring would wait for each of them in turn."""
        tag = _DIRECT | self.exchanges % _DIRECT
        rows = given.new_empty(self.cards, len(given))
        rows[self.card] = given
        others = [card for card in range(self.cards) if card != self.card]
        works = [gloo.send([given], card, tag) for card in others]
        works += [gloo.recv([rows[card]], card, tag) for card in others]
        return Exchange(rows, functools.partial(_wait, works), _nothing, self.meter, cause)

    def gather(
        self, own: torch.Tensor | None, bounds: Sequence[int], device: torch.device
    ) -> torch.Tensor:
        """Bytes of all cards, one after another; card i has bounds[i] to bounds[i + 1].

        `own`: those of this card; None: it takes part without.

        Raises:
            AbsentError: a card is without its bytes.
        """
        self.exchanges += 1
        # Each part is followed by a byte that says whether its card is without data.
        sizes_bytes = [end - first + 1 for first, end in itertools.pairwise(bounds)]
        began_ns = time.monotonic_ns()
        try:
            levels = self._levels
            staged = None if levels is None else levels.gather(own, sizes_bytes, device)
            if staged is None:
                staged = self._broadcast(own, sizes_bytes, device)
        finally:
            self.meter.exchanged("gather", began_ns, sum(sizes_bytes) - sizes_bytes[self.card])
        parts = staged.split(sizes_bytes)
        if torch.stack([part[-1] for part in parts]).any().item():
            raise AbsentError("a card failed before it could take part")
        return torch.cat([part[:-1] for part in parts])

    def _broadcast(
        self, own: torch.Tensor | None, sizes_bytes: Sequence[int], device: torch.device
    ) -> torch.Tensor:
        """See `gather`: each card gives its bytes to all, one card after another."""
        staged = torch.zeros(sum(sizes_bytes), dtype=torch.uint8,
                             device="cpu" if own is None else device)  # fmt: skip
        parts = staged.split(sizes_bytes)
        if own is None:
            parts[self.card][-1] = 1
        else:
            parts[self.card][:-1] = own
        if self._gloo is not None:
            for card, part in enumerate(parts):
                self._gloo.broadcast(part, card).wait()
        return staged


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def _nothing() -> None:
    pass
