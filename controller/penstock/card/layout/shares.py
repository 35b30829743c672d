"""Shares of rows for cards of unlike speeds."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def share_rows(rows: int, speeds: tuple[float, ...], unit: int = 1) -> tuple[int, ...] | None:
    """How many of `rows` rows each card gets, in proportion to `speeds`, in multiples of `unit`.

    The largest remainders get the rows that are left over, the faster card first where they are
    equal, and every card gets at least one unit. None if there are fewer units than cards, or if
    `unit` does not divide `rows`.
    """
    units, rest = divmod(rows, unit)
    if rest or units < len(speeds):
        return None
    total = sum(speeds)
    ideal = [units * speed / total for speed in speeds]
    counts = [max(1, int(part)) for part in ideal]
    order = sorted(range(len(speeds)), key=lambda i: (counts[i] - ideal[i], -speeds[i], i))
    while (missing := units - sum(counts)) > 0:
        for card in order[:missing]:
            counts[card] += 1
    while (excess := sum(counts) - units) > 0:  # the units that the slowest were lifted to
        richest = max(range(len(counts)), key=lambda i: (counts[i] - ideal[i], counts[i]))
        counts[richest] -= min(excess, 1)
    return tuple(count * unit for count in counts)
