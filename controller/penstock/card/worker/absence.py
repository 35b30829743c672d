"""Absence: what a card exchanges for an operation that it cannot run, so that no card waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.card.worker.store import Shape

    Exchange = Callable[[Sequence[Shape]], tuple[int, torch.dtype]]


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which statistics over a batch of this type are added up."""
    return torch.float32 if dtype in {torch.float16, torch.bfloat16} else dtype


def _batch_norm(shapes: Sequence[Shape]) -> tuple[int, torch.dtype]:
    own = shapes[0]
    return 2 * own.size[1] + 1, statistics_dtype(own.dtype)


def _batch_norm_backward(shapes: Sequence[Shape]) -> tuple[int, torch.dtype]:
    own = shapes[1]
    return 2 * own.size[1], statistics_dtype(own.dtype)


def _nll_mean(shapes: Sequence[Shape]) -> tuple[int, torch.dtype]:
    return 2, shapes[0].dtype


def _norms(shapes: Sequence[Shape]) -> tuple[int, torch.dtype]:
    return len(shapes), shapes[0].dtype


# For each operation on tensors that exchanges something: how many elements of which type each card
# gives, from the shapes of its tensor arguments.
EXCHANGES: Mapping[str, Exchange] = {
    "penstock::batch_norm": _batch_norm,
    "penstock::batch_norm_backward": _batch_norm_backward,
    "penstock::foreach_norm": _norms,
    "penstock::nll_mean": _nll_mean,
    "penstock::norm": _norms,
}
