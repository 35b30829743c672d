"""`Layout`: where the bytes of one storage are, on all cards together."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise


class Layout:
    """Where the bytes of one storage are. Layouts are compared by identity, so they hash fast."""

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return self.word


class Split(Layout):
    """A storage split at byte boundaries: card i has the bytes from bounds[i] to bounds[i + 1].

    Made by `split_rows` or `split_at` alone, which return the same object for the same bounds.
    """

    __slots__ = ("bounds",)

    def __init__(self, bounds: tuple[int, ...]) -> None:
        super().__init__(f"split at {', '.join(map(str, bounds[1:-1]))}")
        self.bounds = bounds


WHOLE = Layout("whole")  # every card has all bytes, and they are equal
PARTIAL = Layout("partial")  # every card has as many bytes; the values are the sums over the cards
REDUCING = Layout("reducing")  # partial sums that the cards are adding up while they do other work


@lru_cache(maxsize=65536)
def split_at(bounds: tuple[int, ...]) -> Split:
    """The split at these byte offsets, of which the first is 0 and the last the storage's size.

    Raises:
        ValueError: a card would get nothing. Such a split has no rows to derive views from.
    """
    if any(low >= high for low, high in pairwise(bounds)):
        raise ValueError(f"a card would get no bytes: {bounds}")
    return Split(bounds)


def split_rows(rows: tuple[int, ...], row_bytes: int) -> Split:
    """The split by which card i has `rows[i]` rows of `row_bytes` each. Raises `ValueError`."""
    return split_at((0, *accumulate(count * row_bytes for count in rows)))
