"""Building blocks of rules: the cuts that arguments have, and decisions made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.card.device.decision import PARTIAL, WHOLE, Cut, Decision, Question
from penstock.card.layout import share_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.card.device.decision import Use
    from penstock.card.device.operand import Operand


def fresh_rows(operand: Operand, dim: int, speeds: tuple[float, ...]) -> tuple[int, ...] | None:
    """The rows for each card of a whole tensor along a dimension; None if there are too few.

    The view (batch * length, …) of a tensor (batch, length, …) is cut between the batch's rows.
    """
    length, rows = operand.size[dim], operand.buffer.rows
    unit = length // rows if rows and length and length % rows == 0 else 1
    return share_rows(length, speeds, unit)


def cuts_along(operands: Iterable[Operand | None], dim: int) -> Iterator[tuple[int, ...]]:
    """The rows by which arguments are cut along a dimension, each once."""
    seen = set()
    for one in operands:
        if one is None or one.cut is None or one.cut.dim != dim % one.rank:
            continue
        if one.cut.rows not in seen:
            seen.add(one.cut.rows)
            yield one.cut.rows


def decide(
    question: Question,
    uses: dict[int, Use],
    results: Sequence[Use],
    replaced: Mapping[str, Sequence[object]] | None = None,
    name: str | None = None,
) -> Decision:
    """A decision in which the arguments that are not named are whole.

    `uses` is by the index of the operand; results beyond the given ones are like the last.
    """
    filled = [*results, *([results[-1]] * (len(question.results) - len(results)))]
    return Decision(
        [uses.get(one.index, WHOLE) for one in question.operands],
        filled[: len(question.results)], replaced or {}, name,
    )  # fmt: skip


def normal_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0


__all__ = ["PARTIAL", "WHOLE", "Cut", "Decision", "Question", "cuts_along", "decide",
           "fresh_rows", "normal_dim"]  # fmt: skip
