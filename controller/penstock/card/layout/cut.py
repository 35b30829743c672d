"""Cuts: what of a strided view of a storage lies on each card."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.card.layout.placement import Split


class LocalView(NamedTuple):
    """One card's part of a view: sizes, strides and offset in elements of the card's own bytes."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Cut(NamedTuple):
    """A view that is split along one dimension: card i has `rows[i]` of its indices."""

    dim: int
    rows: tuple[int, ...]


@lru_cache(maxsize=8192)
def local_views(
    split: Split, size: tuple[int, ...], stride: tuple[int, ...], offset: int, item_bytes: int
) -> tuple[Cut, tuple[LocalView, ...]] | None:
    """What of a view of a split storage lies on each card; None if a row of it lies on two cards.

    The view is cut along its dimension with the largest stride. Index j of it occupies the
    elements from offset + j * stride on, as far as the other dimensions reach; the cut exists if
    no such range crosses a boundary of the split, and if every card has at least one index.

    Args:
        split: The layout of the storage.
        size: The view's sizes.
        stride: Its strides in elements, none negative.
        offset: Its first element.
        item_bytes: Bytes of an element. The boundaries may lie inside an element; then there is
            no cut.
    """
    if any(bound % item_bytes for bound in split.bounds) or 0 in size:
        return None
    bounds = [bound // item_bytes for bound in split.bounds]
    long = [k for k in range(len(size)) if size[k] > 1 and stride[k] > 0]
    if not long:
        return None
    dim = max(long, key=lambda k: stride[k])
    reach = 1 + sum((size[k] - 1) * stride[k] for k in long if k != dim)
    step, last = stride[dim], size[dim]
    cuts = [0]
    for bound in bounds[1:-1]:
        index = min(max(-(-(bound - offset) // step), 0), last)  # the first index from `bound` on
        if index and offset + (index - 1) * step + reach > bound:
            return None
        cuts.append(index)
    cuts.append(last)
    rows = tuple(high - low for low, high in pairwise(cuts))
    if not all(count > 0 for count in rows):
        return None
    views = tuple(
        LocalView((*size[:dim], rows[card], *size[dim + 1 :]), stride,
                  offset + cuts[card] * step - bounds[card])
        for card in range(len(rows))
    )  # fmt: skip
    return Cut(dim, rows), views


def whole_view(
    cut: Cut, card: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> LocalView:
    """The part of a view of a whole storage that corresponds to the rows of a card."""
    first = sum(cut.rows[:card])
    return LocalView(
        (*size[: cut.dim], cut.rows[card], *size[cut.dim + 1 :]), stride,
        offset + first * stride[cut.dim],
    )  # fmt: skip
