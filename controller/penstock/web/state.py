"""State that the page shows, as plain data. page/map.js draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_INTERVALS = 60  # of a bar; more are not told apart on a screen, and a browser must draw them
Held = tuple[int, int, int, float | None]  # first, last, index of the holder's name, share in use


def bar_data(label: str, first: int, size: int, held: Iterable[Held]) -> dict[str, object]:
    """A bar of `size` units that count from `first`, with the intervals that are held.

    If they are many, neighbours are shown as one interval, whose holder is -1, with their number.
    """
    intervals = sorted(held)
    if len(intervals) > MOST_INTERVALS:
        intervals = _merged(intervals, first, size)
    return {"label": label, "first": first, "size": size, "held": intervals}


def _merged(intervals: Sequence[Held], first: int, size: int) -> list[Held]:
    merged: list[Held] = []
    at = -1
    for one in intervals:
        place = (one[0] - first) * MOST_INTERVALS // size
        if place != at:
            merged.append(one)
            at = place
            continue
        before = merged[-1]
        count = before[3] if before[2] < 0 and before[3] else 1
        merged[-1] = (before[0], one[1], -1, count + 1)
    return merged


def card_data(title: str, note: str, bars: Sequence[dict[str, object]]) -> dict[str, object]:
    """A card. `note`: what its bars do not show, such as why it is left out."""
    return {"title": title, "note": note, "bars": list(bars)}


def applications_data(
    title: str, phase: str, count: int, rows: Sequence[dict[str, object]], none: str
) -> dict[str, object]:
    """A list of applications, of which `rows` are the first. `none`: said if there are none."""
    return {"title": title, "phase": phase, "count": count, "rows": list(rows), "none": none}
