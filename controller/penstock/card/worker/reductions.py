"""Reductions: a card's partial sums become whole, at once or while other operations run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.worker.collectives import Group, Sum
    from penstock.card.worker.store import Store


def reductions(group: Group, store: Store) -> dict[str, Callable[..., Any]]:
    """The operations by their names without "penstock::"."""
    running: dict[int, tuple[Sum, list[torch.Tensor]]] = {}

    def values(number: int, dtype: torch.dtype) -> torch.Tensor:
        content = store.content(number)
        storage = content.untyped_storage()
        count = storage.nbytes() // dtype.itemsize
        flat = torch.empty(0, dtype=dtype, device=content.device)
        return flat.set_(storage, 0, (count,), (1,))  # type: ignore[call-overload,no-any-return]

    def reduce(numbers: list[int], dtype: torch.dtype) -> None:
        """Adds up buffers of partial sums."""
        parts = [values(one, dtype) for one in numbers]
        if len(parts) == 1:
            group.sum_in_place(parts[0])
            return
        both = torch.cat(parts)
        group.sum_in_place(both)
        _give_back(both, parts)

    def reduce_start(numbers: list[int], dtype: torch.dtype) -> None:
        """Begins to add up buffers; the first number is that of the sum."""
        parts = [values(one, dtype) for one in numbers[1:]]
        running[numbers[0]] = (group.start_sum(torch.cat(parts)), parts)

    def reduce_finish(numbers: list[int]) -> None:
        """Waits for a sum that was begun."""
        total, parts = running.pop(numbers[0])
        _give_back(total.result(), parts)

    return {"reduce": reduce, "reduce_start": reduce_start, "reduce_finish": reduce_finish}


def _give_back(both: torch.Tensor, parts: list[torch.Tensor]) -> None:
    for part, total in zip(parts, both.split([one.numel() for one in parts]), strict=True):
        part.copy_(total)
