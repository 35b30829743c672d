"""Operations over a batch of which each card has a part: means, and losses that are means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.worker.operation import function_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.worker.collectives import Group


def summations(group: Group) -> dict[str, Callable[..., Any]]:
    """The operations by their names without "penstock::"."""

    def mean(
        own: torch.Tensor,
        dim: list[int] | None = None,
        keepdim: bool = False,
        *,
        count: int,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """This card's part of a mean over `count` elements."""
        return torch.sum(own, dim or None, keepdim, dtype=dtype).div_(count)

    def mean_of(*args: Any, operation: str, count: int, **named: Any) -> Any:
        """This card's part of what an operation averages over `count` elements."""
        return function_of(operation, {})(*args, **named).div_(count)

    def nll_mean(*args: Any, operation: str, **named: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean of a loss over all cards' samples, and their weights' sum."""
        both = group.sum(torch.stack(function_of(operation, {})(*args, **named)))
        return both[0] / both[1], both[1].clone()

    return {"mean": mean, "mean_of": mean_of, "nll_mean": nll_mean}
