"""`Exchange`: what each card gives to all others, on its way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.card.worker.meter import Meter


class AbsentError(RuntimeError):
    """A card took part in an exchange without data, so that no card has a result."""


class Exchange:
    """All cards' parts as rows of a tensor, within `with`, which waits for them.

    The last element of a row says whether its card gives nothing.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        wait: Callable[[], None],
        end: Callable[[], None],
        meter: Meter,
        cause: Exception | None = None,
    ) -> None:
        """`rows`: those of all cards, in their order, or their sum alone, after `wait`.

        `end`: called when they are not needed any more. `cause`: why this card gives nothing; None
        if it does.
        """
        self._rows, self._wait, self._end = rows, wait, end
        self._meter, self._cause = meter, cause

    def __enter__(self) -> torch.Tensor:
        """Waits for the rows.

        Raises:
            Exception: why this card gives nothing.
            AbsentError: another card gives nothing.
        """
        began_ns = time.monotonic_ns()
        try:
            self._wait()
        finally:
            self._meter.exchanged("sum", began_ns, self._rows[0].nbytes)
        cause = self._cause
        if cause is None and any(self._rows[:, -1].tolist()):
            cause = AbsentError("a card failed before it could take part")
        if cause is not None:
            self._end()
            raise cause
        return self._rows[:, :-1]

    def __exit__(self, *_: object) -> None:
        self._end()


def write(given: torch.Tensor, own: Sequence[torch.Tensor] | None) -> Exception | None:
    """Writes the row of a card: what it gives, and whether it gives nothing.

    Returns why it could not be written: the card then gives nothing, as the others wait for it.
    """
    cause = None
    if own is not None:
        try:
            torch.cat([one.to(given.device) for one in own], out=given[:-1])
            given[-1] = 0
        except RuntimeError as error:  # of the card's device
            cause = error
        else:
            return None
    given.zero_()
    given[-1] = 1
    return cause
