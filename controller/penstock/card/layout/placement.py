"""`Layout`: where the bytes of one storage are, on all cards together."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from penstock.card.layout.shares import share_rows

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_SHARD_BYTES = 16 << 10  # less is whole: to ask the others for it takes longer than to keep it


class Layout:
    """Where the bytes of one storage are. Layouts are compared by identity, so they hash fast.

    Attributes:
        settled: The layout once sums are added up; a layout without sums is settled.
    """

    __slots__ = ("__weakref__", "settled", "word")

    def __init__(self, word: str, settled: Layout | None = None) -> None:
        self.word = word
        self.settled = self if settled is None else settled

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


class Shard(Split):
    """A split that stays: what needs all bytes on each card gets a copy that is dropped afterwards.

    Made by `shard_at` alone.
    """

    __slots__ = ()


class Partial(Layout):
    """Sums: every card has as many bytes, and the values are the sums over the cards."""

    __slots__ = ()


class Reducing(Layout):
    """Sums that the cards are adding up while they do other work."""

    __slots__ = ()


WHOLE = Layout("whole")  # every card has all bytes, and they are equal


_Kind = TypeVar("_Kind", bound=Layout)
# A layout is known as long as a tensor or a plan has it: a second object for it would look like
# another layout, and be gathered.
_known: WeakValueDictionary[tuple[type[Layout], Any], Any] = WeakValueDictionary()


def _known_or(kind: type[_Kind], key: object, make: Callable[[], _Kind]) -> _Kind:
    known: _Kind | None = _known.get((kind, key))
    if known is None:
        known = _known[kind, key] = make()
    return known


def partial_of(settled: Layout) -> Partial:
    """Sums that will lie in a layout, always the same object for it."""
    return _known_or(Partial, settled, lambda: Partial(f"partial, then {settled}", settled))


def reducing_to(settled: Layout) -> Reducing:
    """Sums that are becoming a layout, always the same object for it."""
    return _known_or(Reducing, settled, lambda: Reducing(f"reducing, then {settled}", settled))


PARTIAL = partial_of(WHOLE)
REDUCING = reducing_to(WHOLE)


def split_at(bounds: tuple[int, ...]) -> Split:
    """The split at these byte offsets, of which the first is 0 and the last the storage's size.

    Raises:
        ValueError: a card would get nothing. Such a split has no rows to derive views from.
    """
    return _known_or(Split, bounds, lambda: Split(_checked(bounds)))


def shard_at(bounds: tuple[int, ...]) -> Shard:
    """The split at these byte offsets that stays. Raises as `split_at`."""
    return _known_or(Shard, bounds, lambda: Shard(_checked(bounds)))


def _checked(bounds: tuple[int, ...]) -> tuple[int, ...]:
    if any(low >= high for low, high in pairwise(bounds)):
        raise ValueError(f"a card would get no bytes: {bounds}")
    return bounds


def split_rows(rows: tuple[int, ...], row_bytes: int) -> Split:
    """The split by which card i has `rows[i]` rows of `row_bytes` each. Raises `ValueError`."""
    return split_at((0, *accumulate(count * row_bytes for count in rows)))


def shard_of(rows: int, size_bytes: int, speeds: tuple[float, ...]) -> Shard | None:
    """How a storage of so many rows is kept in parts; None if that would be worth nothing."""
    if len(speeds) == 1 or size_bytes < LEAST_SHARD_BYTES or not rows or size_bytes % rows:
        return None
    shares = share_rows(rows, speeds)
    return None if shares is None else shard_at(split_rows(shares, size_bytes // rows).bounds)
