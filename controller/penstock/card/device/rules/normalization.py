"""The rules of batch normalization: statistics of the whole batch, each card its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.card.device.rules.offers import PARTIAL, WHOLE, Cut, Decision, Question, decide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.card.device.decision import Use


def batch_norm(question: Question) -> Iterator[Decision]:
    """native_batch_norm and its like: in evaluation each sample is by itself."""
    own = question.named["input"]
    if own.cut is None or own.cut.dim != 0 or own.rank < 2:
        return
    results: list[Use] = [own.cut, WHOLE, WHOLE]
    if question.named["training"]:
        yield decide(question, {own.index: own.cut}, results, None, "penstock::batch_norm")
    else:
        yield decide(question, {own.index: own.cut}, results)


def batch_norm_backward(question: Question) -> Iterator[Decision]:
    """native_batch_norm_backward: the gradients of weight and bias are sums over the batch."""
    named = question.named
    gradient, own = named["grad_out"], named["input"]
    for one in (gradient, own):
        if one.cut is None or one.cut.dim != 0 or own.rank < 2:
            continue
        cut = Cut(0, one.cut.rows)
        uses: dict[int, Any] = {gradient.index: cut, own.index: cut}
        results: list[Use] = [cut, PARTIAL, PARTIAL]
        if not named["train"]:
            yield decide(question, uses, results)
            return
        count = 1
        for dim, length in enumerate(own.size):
            count *= 1 if dim == 1 else length
        replaced = {"count": [count for _ in range(question.cards)]}
        yield decide(question, uses, results, replaced, "penstock::batch_norm_backward")
        return
