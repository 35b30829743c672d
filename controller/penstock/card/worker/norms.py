"""Norms of tensors of which each card has a part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.card.worker.collectives import Group


def norms(group: Group) -> dict[str, Callable[..., Any]]:
    """The operations by their names without "penstock::"."""

    def foreach_norm(
        tensors: Sequence[torch.Tensor],
        ord: float = 2,  # noqa: A002 - torch's name
        *,
        is_split: Sequence[bool],
        dtype: None = None,
    ) -> list[torch.Tensor]:
        """The norm of each tensor; all cards have the same, also of those that are split."""
        del dtype
        own = torch.stack(torch._foreach_norm(list(tensors), ord))
        with group.rows(own) as rows:
            by_card = rows.to(own.device, copy=True)
        # The norm of order 0 counts elements; all others are the norms of the parts' norms.
        all_parts = by_card.sum(0) if ord == 0 else torch.linalg.vector_norm(by_card, ord, 0)
        return list(torch.where(torch.tensor(is_split, device=own.device), all_parts, own))

    def norm(
        own: torch.Tensor,
        ord: float = 2,  # noqa: A002 - torch's name
        dim: list[int] | None = None,
        keepdim: bool = False,
        *,
        is_split: Sequence[bool],
        dtype: None = None,
    ) -> torch.Tensor:
        """The norm of all elements of a tensor that is split."""
        del dim
        result = foreach_norm([own], ord, is_split=is_split, dtype=dtype)[0]
        return result.reshape([1] * own.dim()) if keepdim else result

    return {"foreach_norm": foreach_norm, "norm": norm}
