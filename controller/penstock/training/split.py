"""Split of a batch over cards of unlike speeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def split_batch(
    rows: int, weights: Sequence[float], most: Sequence[int | None] | None = None
) -> tuple[int, ...]:
    """How many of a batch's `rows` samples each card gets, in proportion to `weights`.

    A card gets no more than its `most` (None: no bound); what is beyond goes to the others. The
    largest remainders get the samples that are left over, the heavier card first where they are
    equal. A card may get none.

    Raises:
        ValueError: the bounds together are less than `rows`, or no card has a weight.
    """
    bounds = [rows if one is None else min(one, rows) for one in most or [None] * len(weights)]
    if sum(bounds) < rows:
        raise ValueError(f"{rows} samples do not fit: the cards can take {sum(bounds)} together")
    ideal = _filled(rows, weights, bounds)
    counts = [int(part) for part in ideal]
    by_rest = sorted(range(len(counts)), key=lambda i: (counts[i] - ideal[i], -weights[i], i))
    left = rows - sum(counts)
    while left:
        for i in by_rest:
            if left and counts[i] < bounds[i]:
                counts[i] += 1
                left -= 1
    return tuple(counts)


def unequal(counts: tuple[int, ...]) -> tuple[int, ...]:
    """The same samples, but not as many on each card, if more than one card has some.

    What differs between cards tells what depends on the batch (see `factors`). A card without
    samples computes one.
    """
    having = [i for i, one in enumerate(counts) if one]
    if len(having) < 2 or len({max(1, one) for one in counts}) > 1:
        return counts
    moved = list(counts)
    moved[having[0]] += 1
    moved[having[-1]] -= 1
    return tuple(moved)


def _filled(rows: int, weights: Sequence[float], bounds: Sequence[int]) -> list[float]:
    """Shares in proportion to the weights, those above their bounds cut, the rest shared again."""
    shares = [0.0] * len(weights)
    open_cards = [i for i, one in enumerate(weights) if one > 0]
    left = float(rows)
    while open_cards and left > 0:
        total = sum(weights[i] for i in open_cards)
        full = [i for i in open_cards if left * weights[i] / total >= bounds[i]]
        if not full:
            for i in open_cards:
                shares[i] = left * weights[i] / total
            return shares
        for i in full:
            shares[i] = float(bounds[i])
            left -= bounds[i]
        open_cards = [i for i in open_cards if i not in full]
    if left > 0 and not any(weights):
        raise ValueError("no card has a weight")
    return shares
