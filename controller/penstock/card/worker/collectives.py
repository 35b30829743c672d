"""`Group`: all cards of a program, for operations in which each card needs the others' data."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

# A card that waits for another ends its wait when the program ends the group; this is the last
# resort if nobody does.
LONGEST_WAIT = timedelta(hours=24)


class AbsentError(RuntimeError):
    """A card took part in an exchange without data, so that no card has a result."""


class Sum:
    """A sum over all cards that is on its way; its last element counts the cards without data."""

    def __init__(
        self, parts: torch.Tensor, work: dist.Work | None, cause: Exception | None
    ) -> None:
        """`cause`: why this card has no data; None if it has."""
        self._parts, self._work, self._cause = parts, work, cause

    def result(self) -> torch.Tensor:
        """The sum; waits for it. Raises why this card has no data, `AbsentError` if another."""
        if self._work is not None:
            self._work.wait()
        if self._cause is not None:
            raise self._cause
        if self._parts[-1].item():
            raise AbsentError("a card failed before it could take part")
        return self._parts[:-1]


class Group:
    """The cards of a program, in their order. A group of one card needs no process group.

    All cards make the same exchanges in the same order. A card that has failed must not leave one
    out, or all others would wait for it: it takes part with zeros.

    Attributes:
        exchanges: How many exchanges this card has begun.
    """

    def __init__(self, card: int, cards: int, store: str = "") -> None:
        """Waits until all cards are there. `store`: "file:" and a path in a private folder."""
        self.card, self.cards = card, cards
        self.exchanges = 0
        if cards == 1:
            return
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        meeting = dist.FileStore(store.removeprefix("file:"), cards)
        dist.init_process_group("gloo", store=meeting, rank=card, world_size=cards,
                                timeout=LONGEST_WAIT)  # fmt: skip

    def sum(self, own: torch.Tensor) -> torch.Tensor:
        """The sum over all cards, bit for bit the same on all. Raises `AbsentError`."""
        return self.start_sum(own).result().view(own.shape)

    def start_sum(self, own: torch.Tensor) -> Sum:
        """Begins a sum over all cards, in the order in which all of them begin theirs."""
        return self._start(torch.cat((own.reshape(-1), own.new_zeros(1))))

    def start_without(self, count: int, dtype: torch.dtype, cause: Exception) -> Sum:
        """Takes part in a sum of `count` elements without data."""
        parts = torch.zeros(count + 1, dtype=dtype)
        parts[-1] = 1
        return self._start(parts, cause)

    def _start(self, parts: torch.Tensor, cause: Exception | None = None) -> Sum:
        self.exchanges += 1
        work = dist.all_reduce(parts, async_op=True) if self.cards > 1 else None
        return Sum(parts, work, cause)

    def gather(
        self, own: torch.Tensor | None, bounds: Sequence[int], device: torch.device
    ) -> torch.Tensor:
        """Bytes of all cards, one after another; card i has bounds[i] to bounds[i + 1].

        `own`: those of this card; None: it takes part without.

        Raises:
            AbsentError: a card is without its bytes.
        """
        self.exchanges += 1
        # Each part is followed by a byte that says whether its card is without data.
        staged = torch.zeros(bounds[-1] + self.cards, dtype=torch.uint8,
                             device="cpu" if own is None else device)  # fmt: skip
        parts = [staged[bounds[i] + i : bounds[i + 1] + i + 1] for i in range(self.cards)]
        if own is None:
            parts[self.card][-1] = 1
        else:
            parts[self.card][:-1] = own
        for card, part in enumerate(parts):
            dist.broadcast(part, src=card)
        if torch.stack([part[-1] for part in parts]).any().item():
            raise AbsentError("a card failed before it could take part")
        return torch.cat([part[:-1] for part in parts])
