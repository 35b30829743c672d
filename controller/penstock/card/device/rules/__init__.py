"""Rules: how each operation can be split over the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.card.device.rules import along, losses, normalization
from penstock.card.device.rules.attention import attention
from penstock.card.device.rules.batches import BATCHES, batchwise
from penstock.card.device.rules.pointwise import ALSO, pointwise
from penstock.card.device.rules.products import product
from penstock.card.device.rules.randomness import random_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.card.device.decision import Decision, Question
    from penstock.card.device.signature import Signature

    # Offers ways to split an operation, the best first; none: it is done whole on every card.
    Rule = Callable[[Question], Iterable[Decision]]


def rules_for(signature: Signature) -> Rule:
    """The rule of an operation."""
    if signature.is_random:
        return random_rule
    named = _NAMED.get(signature.name.removeprefix("aten::"))
    if named is not None:
        return named
    if torch.Tag.pointwise in signature.operation.tags or signature.name in ALSO:
        return pointwise
    if signature.name.startswith(("aten::_foreach_", "aten::_fused_")):
        return along.each_by_itself
    return _none


def _none(_: Question) -> Iterable[Decision]:
    return ()


_NAMED: dict[str, Rule] = {
    **dict.fromkeys(BATCHES, batchwise),
    **dict.fromkeys(along.ALONG_DIM, along.along_dim),
    **dict.fromkeys(along.REDUCTIONS, along.reduction),
    **dict.fromkeys(losses.ELEMENTWISE, losses.elementwise_loss),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), product),
    **dict.fromkeys(("native_layer_norm", "native_layer_norm_backward"), along.layer_norm),
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward",
                     "nll_loss2d_backward"), losses.nll_loss),
    "native_batch_norm": normalization.batch_norm,
    "native_batch_norm_backward": normalization.batch_norm_backward,
    **dict.fromkeys(("penstock::attention", "penstock::attention_backward"), attention),
    "_foreach_norm": along.norms,
    "embedding": along.embedding,
    "embedding_dense_backward": along.embedding_backward,
    "cat": along.joined,
    "stack": along.stacked,
    "constant_pad_nd": along.padded,
    "slice_backward": along.backward_of_view,
    "select_backward": along.backward_of_view,
}  # fmt: skip
