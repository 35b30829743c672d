"""`Group`: all cards of a program, for operations in which each card needs the others' data."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from penstock.card.worker.board import Board, NoBoardError
from penstock.card.worker.exchange import AbsentError, Exchange
from penstock.card.worker.meeting import LONGEST_WAIT, Meeting
from penstock.card.worker.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DIRECT_BYTES = 64 << 10  # up to here the time of a message does not depend on its size
_BOARD = "penstock/board/"  # and the card's number: a key of what cards say


class Group:
    """The cards of a program, in their order. A group of one card needs no connections.

    All cards make the same exchanges in the same order. A card that has failed must not leave one
    out, or all others would wait for it: it takes part with zeros. Cards of one node exchange at a
    `Board`, as long as it has room; all others through gloo.

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
        self._gloo: dist.ProcessGroupGloo | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        if cards > 1:
            with contextlib.suppress(NoBoardError):
                self._board = Board(card, cards)
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
        if self.cards > 1:
            self._meet_at_board(said)

    def _meet_at_board(self, said: Mapping[str, bytes]) -> None:
        """All cards use the board, or none does."""
        boards = {int(key.removeprefix(_BOARD)): value
                  for key, value in said.items() if key.startswith(_BOARD)}  # fmt: skip
        board, self._board = self._board, None
        has_met = board is not None
        if board is not None:
            try:
                board.meet(boards)
            except NoBoardError:
                has_met = False
        with self.rows(torch.tensor([has_met], dtype=torch.uint8)) as rows:
            self._board = board if rows.all().item() else None

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
        size_bytes = (count + 1) * dtype.itemsize
        slot = None if self._board is None else self._board.place(size_bytes)
        if slot is not None:
            rows = slot.rows[:, :size_bytes].view(dtype)
            cause = _write(rows[self.card], own) or cause
            slot.post()
            return Exchange(rows, slot.wait, slot.close, self.meter, cause)
        try:
            device = "cpu" if own is None else own[0].device
            given = torch.empty(count + 1, dtype=dtype, device=device)
        except RuntimeError as error:  # of memory on the device
            own, cause, given = None, error, torch.empty(count + 1, dtype=dtype)
        cause = _write(given, own) or cause
        if self._gloo is None:
            return Exchange(given.view(1, -1), _nothing, _nothing, self.meter, cause)
        if is_small or (size_bytes <= DIRECT_BYTES and given.device.type == "cpu"):
            return self._start_direct(self._gloo, given, cause)
        wait = functools.partial(_wait, [self._gloo.allreduce([given])])
        return Exchange(given.view(1, -1), wait, _nothing, self.meter, cause)

    def _start_direct(
        self, gloo: dist.ProcessGroupGloo, given: torch.Tensor, cause: Exception | None
    ) -> Exchange:
        """Sends a small tensor to all cards at once: a ring would wait for each of them in turn."""
        tag = self.exchanges % (1 << 31)
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
        staged = torch.zeros(bounds[-1] + self.cards, dtype=torch.uint8,
                             device="cpu" if own is None else device)  # fmt: skip
        parts = [staged[bounds[i] + i : bounds[i + 1] + i + 1] for i in range(self.cards)]
        if own is None:
            parts[self.card][-1] = 1
        else:
            parts[self.card][:-1] = own
        began_ns = time.monotonic_ns()
        try:
            if self._gloo is not None:
                for card, part in enumerate(parts):
                    self._gloo.broadcast(part, card).wait()
        finally:
            others_bytes = len(staged) - len(parts[self.card])
            self.meter.exchanged("gather", began_ns, others_bytes)
        if torch.stack([part[-1] for part in parts]).any().item():
            raise AbsentError("a card failed before it could take part")
        return torch.cat([part[:-1] for part in parts])


def added(rows: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """A new tensor, the sum of all rows, with the same bits on all cards: all add in order."""
    total = torch.empty_like(rows[0])
    add_up(rows, total)
    return total


def add_up(rows: torch.Tensor | Sequence[torch.Tensor], total: torch.Tensor) -> None:
    """Writes the sum of all rows, which may be on the CPU, to `total`, in the order of the rows."""
    if len(rows) == 1:
        total.copy_(rows[0])
    elif total.device != rows[0].device:
        total.copy_(added(rows))
    else:
        torch.add(rows[0], rows[1], out=total)
        for one in rows[2:]:
            total += one


def _write(given: torch.Tensor, own: Sequence[torch.Tensor] | None) -> Exception | None:
    """Writes what a card gives, and whether it gives nothing.

    Returns why it could not be written: the card then gives nothing, as the others wait for it.
    """
    cause = None
    if own is not None:
        try:
            torch.cat([one.to(given.device) for one in own], out=given[:-1])
            given[-1] = 0
        except RuntimeError as error:  # of the card's device
            cause = error
        else:
            return None
    given.zero_()
    given[-1] = 1
    return cause


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def _nothing() -> None:
    pass
