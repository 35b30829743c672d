"""`Conversions`: what changes how buffers lie on the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.worker.collectives import Group
    from penstock.card.worker.store import Store


class Conversions:
    """The operations on one card's buffers. All cards call them in the same order."""

    def __init__(self, group: Group, store: Store) -> None:
        self._group, self._store = group, store

    def operations(self) -> dict[str, Callable[..., Any]]:
        """The operations by their names without "penstock::"."""
        own = (self.gather, self.keep, self.scatter, self.partial)
        return {one.__name__: one for one in own}

    def gather(self, numbers: list[int], bounds: list[int]) -> None:
        """The second buffer gets all bytes of the first, split one, which it may be itself."""
        number, to = numbers
        cause = None
        try:
            own = self._store.content(number)
            self._store.check_room(bounds[-1] - self._store.size_bytes(to))
        except Exception as error:  # noqa: BLE001 - the others wait for this card all the same
            own, cause = None, error
        try:
            self._store.replace(to, self._group.gather(own, bounds, self._store.device))
        except Exception as error:
            error = cause or error
            self._store.poison([to], str(error), is_common=True, size_bytes=bounds[-1])
            raise error from None

    def keep(self, numbers: list[int], bounds: list[int]) -> None:
        """The first, split buffer gets this card's part of the second, whole one.

        If all cards know that the whole one is missing, they leave the split one as it was.
        """
        number, whole = numbers
        first, end = bounds[self._group.card], bounds[self._group.card + 1]
        try:
            self._store.content(number).copy_(self._store.content(whole)[first:end])
            self._store.unwritten.discard(number)
        except Exception as error:
            is_common = self._store.is_common([number, whole])
            if not is_common or number in self._store.unwritten:
                self._store.poison(
                    [number], str(error), is_common=is_common, size_bytes=end - first
                )
            raise

    def scatter(self, numbers: list[int], bounds: list[int]) -> None:
        """A whole buffer becomes split."""
        (number,) = numbers
        first, end = bounds[self._group.card], bounds[self._group.card + 1]
        try:
            self._store.replace(number, self._store.content(number)[first:end].clone())
        except Exception as error:
            is_common = self._store.is_common([number])
            self._store.poison([number], str(error), is_common=is_common, size_bytes=end - first)
            raise

    def partial(self, numbers: list[int], _: None) -> None:
        """A whole buffer becomes partial sums: all but the first card's are zero."""
        (number,) = numbers
        if self._group.card:
            self._store.content(number).zero_()
