"""Rules of operations that treat each element by itself, with broadcasting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.card.device.rules.offers import PARTIAL, WHOLE, Cut, Decision, Question

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.card.device.decision import Use
    from penstock.card.device.operand import Operand

# Not tagged as such by torch, but they are. The first argument gives the shape.
ALSO = {
    "aten::copy_", "aten::fill_", "aten::zero_", "aten::zeros_like", "aten::ones_like",
    "aten::full_like", "aten::masked_fill", "aten::masked_fill_", "aten::where",
    "aten::native_dropout_backward", "aten::_conj_physical",
    "aten::_to_copy",
}  # fmt: skip

# f(sum of parts) = sum of f(parts), in the arguments named first. Other tensors must be whole.
_LINEAR = {
    "aten::add": 2, "aten::add_": 2, "aten::sub": 2, "aten::sub_": 2, "aten::neg": 1,
    "aten::neg_": 1, "aten::mul": 1, "aten::mul_": 1, "aten::div": 1, "aten::div_": 1,
    "aten::copy_": 2, "aten::zero_": 1,
}  # fmt: skip


def pointwise(question: Question) -> Iterator[Decision]:
    """Offers to work on the rows that a tensor argument is split by, or on partial sums."""
    partial = _on_partial_sums(question)
    if partial is not None:
        yield partial
    size = _size(question)
    seen = set()
    for one in question.operands:
        if one.cut is None:
            continue
        dim = one.cut.dim + len(size) - one.rank
        cut = Cut(dim, one.cut.rows)
        if cut in seen or sum(cut.rows) != size[dim]:
            continue
        seen.add(cut)
        uses = [_aligned(other, cut, len(size)) for other in question.operands]
        yield Decision(uses, [cut] * len(question.results))


def _size(question: Question) -> tuple[int, ...]:
    if question.results and question.results[0] is not None:
        return question.results[0].size
    return max((one.size for one in question.operands), key=len)


def _aligned(operand: Operand, cut: Cut, rank: int) -> Use:
    """How an argument that is broadcast to `rank` dimensions is used."""
    dim = cut.dim - (rank - operand.rank)
    if dim < 0 or operand.size[dim] != sum(cut.rows):
        return WHOLE
    return Cut(dim, cut.rows)


def _on_partial_sums(question: Question) -> Decision | None:
    linear = _LINEAR.get(question.name)
    operands = question.operands
    if linear is None or not operands or (question.full_name.endswith(".Scalar") and linear == 2):
        return None
    if question.named.get("rounding_mode") is not None:
        return None
    own, others = operands[:linear], operands[linear:]
    if len(own) < linear or any(
        one.layout is not PARTIAL and not _is_target(question, one) for one in own
    ):
        return None
    if any(one.layout is PARTIAL for one in others) or not _keeps_floats(question):
        return None
    uses: list[Use] = [PARTIAL for _ in own]
    return Decision([*uses, *(WHOLE for _ in others)], [PARTIAL] * len(question.results))


def _is_target(question: Question, operand: Operand) -> bool:
    """Whether it is a tensor without content yet that will get partial sums."""
    return question.name == "aten::copy_" and operand.index == 0 and operand.layout is None


def _keeps_floats(question: Question) -> bool:
    """Whether sums of results are results of sums, but for rounding."""
    kinds = [one.dtype for one in question.operands] + [
        meta.dtype for meta in question.results if meta is not None
    ]
    return all(kind.is_floating_point or kind.is_complex for kind in kinds)
