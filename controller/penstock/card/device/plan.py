"""`Plan`: how one operation runs on the cards for arguments of these shapes and layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from penstock.card.device.stream import CALLS_AT_ONCE
from penstock.card.device.tensors import new_tensor
from penstock.card.layout import Partial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.card.device.buffer import Buffer
    from penstock.card.device.conversions import Loan, StandIn
    from penstock.card.device.costs import GatherCost
    from penstock.card.device.passes import Division
    from penstock.card.device.session import Session
    from penstock.card.layout import Layout

_is_grad_enabled = torch.is_grad_enabled


class NewTensor(NamedTuple):
    """A result that is a tensor of its own."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout
    size_bytes: int


class Plan:
    """What is done for one call: layouts changed, one call on the cards, results made.

    Attributes:
        before: For arguments that lie otherwise than the call needs: (argument, its new layout).
        loans: The arguments that are kept in parts and of which the call needs all on each card.
        number: The operation's number on the cards.
        results: For each result, in the order of the flattened return value: a new tensor, or the
            argument that it is, or None.
        after: The layouts of changed arguments: (argument, layout).
        divisions: The arguments that are divided here, of which every card had all before.
    """

    __slots__ = ("_gather", "_has_more", "_has_sums", "after", "before", "build", "divisions",
                 "loans", "number", "results")  # fmt: skip

    def __init__(
        self,
        number: int,
        results: Sequence[NewTensor | int | None],
        before: Sequence[tuple[int, Layout]],
        loans: Sequence[Loan],
        after: Sequence[tuple[int, Layout]],
        build: Callable[[list[torch.Tensor | None]], object] | None,
        gather: GatherCost | None = None,
        divisions: Sequence[Division] = (),
    ) -> None:
        """Takes the parts of a plan.

        `build` makes the return value of the results; None: there is one, and it is it.
        `gather`: what counts the runs; None: it gathers nothing.
        """
        self.number = number
        self.results = results
        self.before = before
        self.loans = loans
        self.after = after
        self.build = build
        self._gather = gather
        self.divisions = divisions
        self._has_sums = any(
            type(one) is NewTensor and isinstance(one.layout, Partial) for one in results
        )
        self._has_more = self._has_sums or bool(loans) or bool(divisions)

    def run(
        self,
        session: Session,
        tensors: list[torch.Tensor],
        buffers: list[Buffer],
        integers: list[int],
        reals: list[float],
    ) -> object:
        """Appends the call to the stream and returns what the operation returns.

        Raises:
            PenstockCardWarning: the program makes errors of such warnings; nothing was done.
        """
        stream = session.stream
        lent: Sequence[Buffer | StandIn] = buffers
        if self.before or self.loans:
            lent = self._prepare(session, tensors, buffers)
        stream.is_torn = True
        numbers = stream.numbers
        numbers.append(self.number)
        for buffer in lent:
            numbers.append(buffer.number)
        if integers:
            numbers += integers
        if reals:
            stream.reals += reals
        made: list[torch.Tensor | None] = []
        for result in self.results:
            if isinstance(result, int):
                made.append(tensors[result])
            else:
                made.append(None if result is None else new_tensor(*result, numbers))
        for index, layout in self.after:
            buffers[index].layout = layout
        if self._has_more:
            self._note(session, tensors, buffers, lent, made)
        stream.calls += 1
        stream.is_torn = False
        if stream.calls >= CALLS_AT_ONCE or not stream.is_noted:
            stream.appended()
        return made[0] if self.build is None else self.build(made)

    def _note(
        self,
        session: Session,
        tensors: list[torch.Tensor],
        buffers: list[Buffer],
        lent: Sequence[Buffer | StandIn],
        made: list[torch.Tensor | None],
    ) -> None:
        """Takes back what was lent, and tells of sums and of batches that begin to be divided."""
        if self._has_sums or self.loans:
            session.conversions.take_back(self.loans, buffers, lent)
            session.reductions.note(made)
        if self.divisions and _is_grad_enabled():
            session.passes.divide(self.number, self.divisions, tensors, buffers)

    def _prepare(
        self, session: Session, tensors: list[torch.Tensor], buffers: list[Buffer]
    ) -> Sequence[Buffer | StandIn]:
        """Makes arguments lie as the call needs them; counts what is gathered. Raises as `run`."""
        if self._gather is not None:
            self._gather.add()
        session.stream.is_torn = True
        session.change_layouts(self.before, buffers, tensors)
        return session.conversions.lend(self.loans, buffers)
