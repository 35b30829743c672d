"""Rules of products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.card.device.rules.offers import (
    PARTIAL,
    WHOLE,
    Cut,
    Decision,
    Question,
    decide,
    fresh_rows,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.card.device.decision import Use
    from penstock.card.device.operand import Operand


def product(question: Question) -> Iterator[Decision]:
    """mm, bmm, and with something added addmm, baddbmm: rows of the first, or sums over both."""
    left, right = _factors(question)
    added = question.operands[0] if question.operands[0] is not left else None
    if left.rank < 2 or right.rank < 2:
        return
    inner = left.rank - 1
    yield from _by_rows(question, added, left, right)
    # Parameters that are kept in parts are fetched: what they multiply is split by the batch.
    offered = {one.cut.rows for one, dim in ((left, inner), (right, right.rank - 2))
               if one.cut is not None and one.cut.dim == dim and not one.is_shard}  # fmt: skip
    if added is None:
        for rows in offered:
            uses: dict[int, Use] = {left.index: Cut(inner, rows),
                                    right.index: Cut(right.rank - 2, rows)}  # fmt: skip
            yield decide(question, uses, [PARTIAL])
    if left.layout is PARTIAL and added is None:
        yield decide(question, {left.index: PARTIAL}, [PARTIAL])


def _factors(question: Question) -> tuple[Operand, Operand]:
    named = question.named
    for first, second in (
        ("mat1", "mat2"),
        ("batch1", "batch2"),
        ("self", "mat2"),
        ("self", "vec"),
    ):
        if first in named and second in named:
            return named[first], named[second]
    return question.operands[0], question.operands[1]


def _by_rows(
    question: Question, added: Operand | None, left: Operand, right: Operand
) -> Iterator[Decision]:
    """Each card has rows of the first factor, or matrices of both stacks, and of the result."""
    is_stack = left.rank == 3
    offers = []
    for one in (left, right if is_stack else left):
        if one.cut is not None and one.cut.dim == 0 and one.cut.rows not in offers:
            offers.append(one.cut.rows)
    is_split = any(one.cut is not None and not one.is_shard for one in (left, right))
    is_sum = left.layout is PARTIAL or right.layout is PARTIAL
    is_worth_it = _work(left, right) >= question.least_work
    if not offers and not is_split and not is_sum and is_worth_it:
        rows = fresh_rows(left, 0, question.speeds)
        offers = [rows] if rows is not None else []
    for rows in offers:
        uses = {left.index: Cut(0, rows)}
        if is_stack:
            uses[right.index] = Cut(0, rows)
        if added is not None and added.rank == left.rank and added.size[0] == sum(rows):
            uses[added.index] = Cut(0, rows)
        yield decide(question, dict(uses), [Cut(0, rows)])


def _work(left: Operand, right: Operand) -> float:
    work = float(right.size[-1])
    for length in left.size:
        work *= length
    return work


__all__ = ["WHOLE", "product"]
