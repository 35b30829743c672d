"""Passes: the loss and the batch of a program's backward passes, for who watches the program."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from penstock.card.device import steps
from penstock.card.frames import pack_range
from penstock.card.layout import Partial, Reducing, Split
from penstock.card.link import CardError, OperationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.session import Session
    from penstock.card.link import Reply

LOSS_PERIOD_S = 1.0  # between two downloads of a loss
_NO_PART = memoryview(b"")


class Division(NamedTuple):
    """Where an operation begins to divide a tensor that every card has whole.

    Attributes:
        argument: Which tensor argument it is.
        dim: Along which dimension it is divided.
        rows: How many indices of that dimension each card gets.
    """

    argument: int
    dim: int
    rows: tuple[int, ...]


class Passes:
    """What is seen of the backward passes of a session's program.

    The rows of a batch are known where the forward pass divides a tensor that every card has whole:
    by its first dimension, as everywhere else in that pass. Otherwise nobody knows them: a layer
    may divide channels, and two batches may have one backward pass.

    Attributes:
        rows: Of the last pass: the rows of its batch that each card had; None: they are not known.
        samples: The rows of all passes that each card had, since the program has these cards.
        total: The rows of all passes so far.
        unknown: How many passes had batches of unknown rows.
        loss: The last one that was read; None: none was. It may be NaN.
        loss_step: Of which step it is (`steps.count`).
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.rows: tuple[int, ...] | None = None
        self.samples: tuple[int, ...] = ()
        self.total = self.unknown = 0
        self.loss: float | None = None
        self.loss_step = self._asked_step = 0
        self._next_s = 0.0
        self._replies: list[Reply] = []
        self._dtype = torch.float32
        self._begin()

    def _begin(self) -> None:
        self._found: set[tuple[int, ...]] = set()
        self._divided: dict[tuple[int, int], int] = {}  # buffers by operation and argument
        self._is_clear = True

    def divide(
        self,
        operation: int,
        divisions: Sequence[Division],
        tensors: Sequence[torch.Tensor],
        buffers: Sequence[Buffer],
    ) -> None:
        """A forward pass begins to divide tensors. What is trained is no batch."""
        for argument, dim, rows in divisions:
            tensor, buffer = tensors[argument], buffers[argument]
            if tensor.is_leaf and tensor.requires_grad:
                continue
            key = operation, argument
            is_first = self._divided.setdefault(key, buffer.number) == buffer.number
            self._is_clear = self._is_clear and is_first and dim == 0
            self._found.add(_in_rows(rows, buffer.rows))

    def backward(self, loss: torch.Tensor | None) -> None:
        """A backward pass begins; `loss`: what it begins at, if that is one tensor."""
        if self._is_clear and len(self._found) == 1:
            (self.rows,) = self._found
            if len(self.samples) != len(self.rows):  # the program has moved to other cards
                self.samples = (0,) * len(self.rows)
            self.samples = tuple(map(sum, zip(self.samples, self.rows, strict=True)))
            self.total += sum(self.rows)
        else:
            self.rows = None
            self.unknown += 1
        if time.monotonic() >= self._next_s and loss is not None:
            self._ask_loss(loss)

    def ended(self) -> None:
        """A backward pass has ended: what was divided in it, to be done again, is no batch."""
        self._begin()

    def _ask_loss(self, loss: torch.Tensor) -> None:
        """Asks the cards for a loss; the answer is taken by `read_loss`."""
        session = self._session
        with session.stream.lock:
            if self._replies or loss.numel() != 1 or not loss.is_floating_point():
                return
            self._next_s = time.monotonic() + LOSS_PERIOD_S
            self._dtype = loss.dtype
            layout = loss.untyped_storage().buffer.layout
            if isinstance(layout, Reducing | Split) or session.stream.is_torn:
                return  # it is asked for at another pass
            self._asked_step = steps.count
            body = _bytes_of(loss)
            cards = len(session.stream.links) if isinstance(layout, Partial) else 1
            try:
                self._replies = session.stream.begin_downloads([(i, body) for i in range(cards)])
            except CardError:
                if session.stream.recovery is None:
                    raise
                # Else the next operation starts other cards.

    def read_loss(self) -> None:
        """Takes the cards' answers if they are there; of partial sums, each card has a part."""
        replies = self._replies
        if not replies or not all(one.is_done for one in replies):
            return
        try:
            parts = [_number(one.result(), self._dtype) for one in replies]
        except (CardError, OperationError):
            parts = []  # the next operation raises it, or other cards took their place
        if parts:
            self.loss, self.loss_step = sum(parts), self._asked_step
        self._replies = []


def _in_rows(rows: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """What each card has of a batch of so many rows, of which `rows` may be a flattened view."""
    each = sum(rows) // batch if batch else 0
    if each > 1 and batch * each == sum(rows) and not any(one % each for one in rows):
        return tuple(one // each for one in rows)
    return rows


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """The request for the only element of a tensor."""
    size_bytes = tensor.element_size()
    first = tensor.storage_offset() * size_bytes
    return pack_range(tensor.untyped_storage().buffer.number, first, first + size_bytes)


def _number(content: memoryview, dtype: torch.dtype) -> float:
    return float(torch.frombuffer(bytearray(content), dtype=dtype).item())
