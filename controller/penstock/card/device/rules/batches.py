"""Rules of operations that treat each sample of a batch by itself: a table.

For each operation its tensor arguments and its results in their order: b for one whose first
dimension is the batch, w for one that is whole, p for a result that is a sum over the batch.
Arguments of other kinds that contain the batch's size are named after the bar.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.card.device.rules.offers import (
    PARTIAL,
    WHOLE,
    Cut,
    Decision,
    Question,
    cuts_along,
    fresh_rows,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.card.device.decision import Use
    from penstock.card.device.operand import Operand

BATCHES = {
    "convolution": "input=b weight=w bias=w -> b",
    "convolution_backward": "grad_output=b input=b weight=w -> b p p",
    "_slow_conv2d_forward": "self=b weight=w bias=w -> b",
    "native_group_norm": "input=b weight=w bias=w -> b b b | N",
    "native_group_norm_backward": "grad_out=b input=b mean=b rstd=b weight=w -> b p p | N",
    "max_pool2d_with_indices": "self=b -> b b",
    "max_pool2d_with_indices_backward": "grad_output=b self=b indices=b -> b",
    "max_pool3d_with_indices": "self=b -> b b",
    "max_pool3d_with_indices_backward": "grad_output=b self=b indices=b -> b",
    "avg_pool2d": "self=b -> b",
    "avg_pool2d_backward": "grad_output=b self=b -> b",
    "avg_pool3d": "self=b -> b",
    "avg_pool3d_backward": "grad_output=b self=b -> b",
    "_adaptive_avg_pool2d": "self=b -> b",
    "_adaptive_avg_pool2d_backward": "grad_output=b self=b -> b",
    "_adaptive_avg_pool3d": "self=b -> b",
    "_adaptive_avg_pool3d_backward": "grad_output=b self=b -> b",
    "adaptive_max_pool2d": "self=b -> b b",
    "adaptive_max_pool2d_backward": "grad_output=b self=b indices=b -> b",
    "adaptive_max_pool3d": "self=b -> b b",
    "adaptive_max_pool3d_backward": "grad_output=b self=b indices=b -> b",
    "upsample_nearest1d": "self=b -> b",
    "upsample_nearest2d": "self=b -> b",
    "upsample_nearest3d": "self=b -> b",
    "_upsample_nearest_exact2d": "self=b -> b",
    "upsample_bilinear2d": "self=b -> b",
    "upsample_bicubic2d": "self=b -> b",
    "upsample_linear1d": "self=b -> b",
    "upsample_trilinear3d": "self=b -> b",
    "upsample_nearest1d_backward": "grad_output=b -> b | input_size",
    "upsample_nearest2d_backward": "grad_output=b -> b | input_size",
    "upsample_nearest3d_backward": "grad_output=b -> b | input_size",
    "upsample_bilinear2d_backward": "grad_output=b -> b | input_size",
    "upsample_bicubic2d_backward": "grad_output=b -> b | input_size",
    "upsample_linear1d_backward": "grad_output=b -> b | input_size",
    "upsample_trilinear3d_backward": "grad_output=b -> b | input_size",
    "reflection_pad1d": "self=b -> b",
    "reflection_pad1d_backward": "grad_output=b self=b -> b",
    "reflection_pad2d": "self=b -> b",
    "reflection_pad2d_backward": "grad_output=b self=b -> b",
    "reflection_pad3d": "self=b -> b",
    "reflection_pad3d_backward": "grad_output=b self=b -> b",
    "replication_pad1d": "self=b -> b",
    "replication_pad1d_backward": "grad_output=b self=b -> b",
    "replication_pad2d": "self=b -> b",
    "replication_pad2d_backward": "grad_output=b self=b -> b",
    "replication_pad3d": "self=b -> b",
    "replication_pad3d_backward": "grad_output=b self=b -> b",
    "grid_sampler_2d": "input=b grid=b -> b",
    "grid_sampler_2d_backward": "grad_output=b input=b grid=b -> b b",
    "grid_sampler_3d": "input=b grid=b -> b",
    "grid_sampler_3d_backward": "grad_output=b input=b grid=b -> b b",
    "im2col": "self=b -> b",
    "col2im": "self=b -> b",
    "pixel_shuffle": "self=b -> b",
    "pixel_unshuffle": "self=b -> b",
    "channel_shuffle": "self=b -> b",
    "_cdist_forward": "x1=b x2=b -> b",
}
# The rank that these have with a batch: without one, their first dimension is another.
RANKS = {"2d": 4, "3d": 5, "1d": 3}
BATCH_RANK_3 = {"im2col": 4, "col2im": 3, "_cdist_forward": 3}
WITH_WEIGHTS = {"convolution", "convolution_backward"}


def batchwise(question: Question) -> Iterator[Decision]:
    """Offers to give each card its samples."""
    short = question.name.removeprefix("aten::")
    arguments, _, rest = BATCHES[short].partition(" -> ")
    results, _, sized = rest.partition(" | ")
    kinds = dict(one.split("=") for one in arguments.split())
    batch = [question.named[name] for name, kind in kinds.items() if kind == "b"]
    batch = [one for one in batch if one is not None]
    if any(one.rank != _rank(short, one) for one in batch):
        return
    for rows in _rows(question, short, batch):
        cut = Cut(0, rows)
        own = {one.index for one in batch}
        words: dict[str, Use] = {"b": cut, "p": PARTIAL, "w": WHOLE}
        yield Decision(
            [cut if one.index in own else WHOLE for one in question.operands],
            [words[kind] for kind in results.split()],
            {name: _sizes(question.named[name], rows) for name in sized.split()},
        )


def _rank(short: str, operand: Operand) -> int:
    if short in BATCH_RANK_3:
        return BATCH_RANK_3[short]
    return next((rank for dims, rank in RANKS.items() if dims in short), operand.rank)


def _rows(question: Question, short: str, batch: list[Operand]) -> Iterator[tuple[int, ...]]:
    found = list(cuts_along(batch, 0))
    if not found and short in WITH_WEIGHTS and all(one.cut is None for one in batch):
        work = math.prod(batch[-1].size) * math.prod(question.named["weight"].size[1:])
        if work >= question.least_work:
            rows = fresh_rows(batch[-1], 0, question.speeds)
            found = [rows] if rows is not None else []
    yield from found


def _sizes(value: int | list[int], rows: tuple[int, ...]) -> list[object]:
    """The argument for each card: the batch's size is its own rows."""
    return [own if isinstance(value, int) else [own, *value[1:]] for own in rows]
