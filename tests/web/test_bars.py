"""Bars of a card: all that is held is shown, in a number of intervals that a browser can draw."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.web import Query, bar_data
from penstock.web.state import MOST_INTERVALS


@given(st.integers(1, 10**6), st.sets(st.integers(0, 3000), min_size=2, max_size=400), st.data())
def test_a_bar_shows_all_that_is_held_in_a_bounded_number_of_intervals(first, cuts, data):
    edges = sorted(cuts)
    size = edges[-1] + 1
    holes = data.draw(st.sets(st.integers(0, len(edges))))
    held = [
        (first + begin, first + end - 1, at, None)
        for at, (begin, end) in enumerate(pairwise(edges))
        if at not in holes
    ]
    shown = bar_data("blocks", first, size, held)["held"]
    if len(held) <= MOST_INTERVALS:
        assert shown == held
    assert len(shown) <= max(MOST_INTERVALS, 1)
    assert sum(share if at < 0 else 1 for _, _, at, share in shown) == len(held)
    for one, other in pairwise(shown):
        assert one[1] < other[0]
    for begin, end, _, _ in held:
        assert any(one[0] <= begin and end <= one[1] for one in shown)


@given(st.integers(0, 100), st.integers(0, 10_000), st.integers(1, 100))
def test_a_page_that_is_not_there_any_more_becomes_the_last_one(page, found, a_page):
    at, pages, cut = Query("", page).cut(found, a_page)
    assert 0 <= at < pages
    assert len(range(*cut.indices(found))) > 0 or found == 0
    assert (pages - 1) * a_page < max(found, 1) <= pages * a_page
