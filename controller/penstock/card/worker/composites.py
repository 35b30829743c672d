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
        cause = None
        try:
            own = store.content(number)
            store.check_room(bounds[-1] - len(own))
        except Exception as error:  # noqa: BLE001 - the others wait for this card all the same
            own, cause = None, error
        try:
            store.replace(number, group.gather(own, bounds, store.device))
        except Exception as error:
            error = cause or error
            store.poison([number], str(error), is_common=True, size_bytes=bounds[-1])
            raise error from None

    def scatter(number: int, bounds: list[int]) -> None:
        """A whole buffer becomes split."""
        first, end = bounds[group.card], bounds[group.card + 1]
        try:
            store.replace(number, store.content(number)[first:end].clone())
        except Exception as error:
            is_common = store.is_common([number])
            store.poison([number], str(error), is_common=is_common, size_bytes=end - first)
            raise

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
