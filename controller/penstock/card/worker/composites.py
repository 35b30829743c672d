"""Operations of Penstock's own that a card's worker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.card.worker.conversions import Conversions
from penstock.card.worker.normalization import normalizations
from penstock.card.worker.norms import norms
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
    return {
        **Conversions(group, store).operations(), **reductions(group, store),
        **random_operations(), **summations(group), **normalizations(group, adapter),
        **norms(group),
        "attention": adapter.attention, "attention_backward": adapter.attention_backward,
    }  # fmt: skip
