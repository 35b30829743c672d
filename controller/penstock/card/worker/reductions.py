"""Reductions: a card's partial sums become whole, at once or while other operations run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.worker.adding import add_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.worker.collectives import Group
    from penstock.card.worker.exchange import Exchange
    from penstock.card.worker.store import Store


def reductions(group: Group, store: Store) -> dict[str, Callable[..., Any]]:
    """The operations by their names without "penstock::"."""
    running: dict[int, tuple[Exchange, list[torch.Tensor], list[int]]] = {}

    def values(number: int, dtype: torch.dtype) -> torch.Tensor:
        content = store.content(number)
        storage = content.untyped_storage()
        count = storage.nbytes() // dtype.itemsize
        flat = torch.empty(0, dtype=dtype, device=content.device)
        return flat.set_(storage, 0, (count,), (1,))

    def start(numbers: list[int], dtype: torch.dtype) -> tuple[Exchange, list[torch.Tensor]]:
        try:
            parts = [values(one, dtype) for one in numbers]
        except Exception as error:  # noqa: BLE001 - the others wait for this card all the same
            count = sum(store.size_bytes(one) for one in numbers) // dtype.itemsize
            return group.start_without(count, dtype, error), []
        return group.start_sum(parts), parts

    def finish(exchange: Exchange, own: list[torch.Tensor], numbers: list[int]) -> None:
        try:
            with exchange as given:
                sizes = [len(one) for one in own]
                for part, *parts in zip(own, *(one.split(sizes) for one in given), strict=True):
                    add_up(parts, part)
        except Exception as error:
            known = [one for one in numbers if one in store]  # the others were freed meanwhile
            store.poison(known, str(error), is_common=True)
            raise

    def reduce(numbers: list[int], dtype: torch.dtype) -> None:
        """Adds up buffers of partial sums."""
        finish(*start(numbers, dtype), numbers)

    def reduce_start(numbers: list[int], dtype: torch.dtype) -> None:
        """Begins to add up buffers; the first number is that of the sum."""
        running[numbers[0]] = (*start(numbers[1:], dtype), numbers[1:])

    def reduce_finish(numbers: list[int], _: None) -> None:
        """Waits for a sum that was begun."""
        finish(*running.pop(numbers[0]))

    return {"reduce": reduce, "reduce_start": reduce_start, "reduce_finish": reduce_finish}
