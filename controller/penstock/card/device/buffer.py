"""`Buffer`: one storage on the cards, freed there when the program's last tensor of it is gone."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from penstock.card.layout import Layout

_ref = weakref.ref
_numbers = itertools.count(1)  # next() is atomic, as backward runs in threads of its own


def reserve() -> int:
    """The number of a buffer that the cards make before the program has it."""
    return next(_numbers)


dead: deque[int] = deque()  # the numbers of buffers that the cards are still to forget


_live: dict[int, weakref.ref[Buffer]] = {}


def live_buffers() -> list[Buffer]:
    """All buffers that the program has."""
    return [one for ref in list(_live.values()) if (one := ref()) is not None]


class Buffer:
    """One storage on the cards. torch keeps it as long as the storage, as its attribute.

    Attributes:
        number: Its number on all cards; never used again.
        size_bytes: The size of the storage.
        layout: How the bytes lie on the cards; None: nowhere yet, as nothing was written.
        rows: The length of the first dimension of the tensor that it was made for, 0 if it has
            none. Splits do not cross these rows, so that a tensor of (batch, length) and its
            view of (batch * length) are cut at the same bytes.
        sum_dtype: The type of its elements, if they are sums or are being added up.
    """

    __slots__ = ("__weakref__", "layout", "number", "rows", "size_bytes", "sum_dtype")

    def __init__(
        self, size_bytes: int, layout: Layout | None, rows: int, number: int | None = None
    ) -> None:
        self.number = next(_numbers) if number is None else number
        self.size_bytes = size_bytes
        self.layout = layout
        self.rows = rows
        self.sum_dtype: torch.dtype | None = None
        _live[self.number] = _ref(self)

    def __del__(self) -> None:
        _live.pop(self.number, None)
        # Garbage may be collected at any moment, also while this thread holds the lock of the
        # stream: the number is only noted.
        if self.layout is not None:
            dead.append(self.number)
