"""Rules of losses that are summed or averaged over the elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from penstock.card.device.rules.offers import PARTIAL, WHOLE, Cut, Decision, Question, decide

if TYPE_CHECKING:
    from collections.abc import Iterator

NONE, MEAN, SUM = 0, 1, 2  # torch's numbers for `reduction`
ELEMENTWISE = {
    "mse_loss", "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss",
    "huber_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward",
    "soft_margin_loss", "soft_margin_loss_backward",
}  # fmt: skip


def elementwise_loss(question: Question) -> Iterator[Decision]:
    """Losses of each element by itself: means are sums divided by the whole number of elements."""
    named, cards = question.named, range(question.cards)
    own = named["self"]
    reduction = named["reduction"]
    is_backward = "grad_output" in named
    like = [named[name] for name in ("self", "target", "weight") if named.get(name) is not None]
    if is_backward and reduction == NONE:
        like.append(named["grad_output"])
    for one in like:
        if one.cut is None or any(other.size != own.size for other in like):
            continue
        result = one.cut if reduction == NONE or is_backward else PARTIAL
        uses = {other.index: one.cut for other in like}
        if reduction != MEAN:
            yield decide(question, dict(uses), [result])
            return
        replaced: dict[str, list[Any]] = {
            "reduction": [SUM for _ in cards],
            "operation": [question.full_name for _ in cards],
            "count": [math.prod(own.size) for _ in cards],
        }
        yield decide(question, dict(uses), [result], replaced, "penstock::mean_of")


def nll_loss(question: Question) -> Iterator[Decision]:
    """nll_loss and nll_loss2d: means are divided by the weights of all samples."""
    named, cards = question.named, range(question.cards)
    own, target = named["self"], named["target"]
    if own.rank < 2:
        return
    for one in (own, target):
        if one.cut is None or one.cut.dim != 0:
            continue
        cut = Cut(0, one.cut.rows)
        uses = {own.index: cut, target.index: cut}
        if "grad_output" in named:
            if named["reduction"] == NONE:
                uses[named["grad_output"].index] = cut
            yield decide(question, dict(uses), [cut])
        elif named["reduction"] == NONE:
            yield decide(question, dict(uses), [cut, WHOLE])
        elif named["reduction"] == SUM:
            yield decide(question, dict(uses), [PARTIAL, PARTIAL])
        else:
            replaced: dict[str, list[Any]] = {
                "reduction": [SUM for _ in cards],
                "operation": [question.full_name for _ in cards],
            }
            yield decide(question, dict(uses), [WHOLE, WHOLE], replaced, "penstock::nll_mean")
        return
