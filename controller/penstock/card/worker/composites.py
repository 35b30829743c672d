"""Operations of Penstock's own that a card's worker runs: what changes how buffers lie on cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.card.worker.normalization import normalizations
from penstock.card.worker.random import random_operations
from penstock.card.worker.reductions import reductions
from penstock.card.worker.summation import summations

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.adapters import Adapter
    from penstock.card.worker.collectives import Group
    from penstock.card.worker.store import Store


def composites(group: Group, store: Store, adapter: Adapter) -> dict[str, Callable[..., Any]]:
    """The operations by their names without "penstock::"."""

    def gather(number: int, bounds: list[int]) -> None:
        """A split buffer becomes whole."""
        store.replace(number, group.gather(store.content(number), bounds))

    def scatter(number: int, bounds: list[int]) -> None:
        """A whole buffer becomes split."""
        content = store.content(number)
        store.replace(number, content[bounds[group.card] : bounds[group.card + 1]].clone())

    def partial(number: int, _: list[int]) -> None:
        """A whole buffer becomes partial sums: all but the first card's are zero."""
        if group.card:
            store.content(number).zero_()

    return {
        "gather": gather, "scatter": scatter, "partial": partial,
        **reductions(group, store), **random_operations(), **summations(group),
        **normalizations(group),
        "attention": adapter.attention, "attention_backward": adapter.attention_backward,
    }  # fmt: skip
