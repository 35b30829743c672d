"""The map of a pool: each character stands for the application that holds most of its blocks."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from tests.pool_cli.support.unkind_pool import pool_of

from penstock.cli.render.pool_map import FREE, LETTERS, UNNUMBERED, map_lines
from penstock.cli.render.pool_table import duration_text, runs_text
from penstock_api.v1 import pool_pb2


def bars(state, width=120, nodes=()):
    lines = [Text.from_markup(line).plain for line in map_lines(state, width, nodes)]
    return [line.split("|")[1] for line in lines if "|" in line], lines


@st.composite
def pools(draw):
    """A pool, and who holds each block of it."""
    nodes, cards, blocks = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 12)),
    )
    total = nodes * cards * blocks
    cuts = sorted(draw(st.sets(st.integers(1, total + 1), max_size=8)))
    held = [
        (f"app-{at}", first, last - 1)
        for at, (first, last) in enumerate(pairwise(cuts))
        if draw(st.booleans())
    ]
    return pool_of(nodes, cards, blocks, held), held


@given(pools())
def test_without_scaling_every_block_is_a_character_of_its_holder(case):
    state, held = case
    rows, lines = bars(state)
    shown = "".join(rows)
    assert len(shown) == state.blocks
    assert shown.count(FREE) == state.free_blocks
    by_letter = Counter(shown)
    for at, (name, first, last) in enumerate(held):
        letter = shown[first - 1]
        assert letter == LETTERS[at]
        assert set(shown[first - 1 : last]) == {letter}
        assert by_letter[letter] == last - first + 1
        assert any(line.startswith(f"{letter} {name}: {last - first + 1} blocks") for line in lines)


@given(st.integers(1, 5000), st.integers(20, 200))
def test_a_map_is_never_wider_than_the_screen(blocks, width):
    state = pool_of(2, 1, blocks, [("train", 1, blocks // 2)] if blocks > 1 else [])
    rows, lines = bars(state, width)
    widest = max(len(line) for line in lines if "|" in line)
    assert widest <= max(width, 10 + len("node-0 0") + len("5000/5000") + 5)
    assert len(set(map(len, rows))) == 1


def test_a_character_of_several_blocks_shows_who_holds_most_of_them():
    state = pool_of(1, 1, 1000, [("large", 1, 490), ("small", 491, 495)])
    (row,), lines = bars(state, width=76)
    assert row == "A" * 25 + FREE * 25
    assert "a character is 20 blocks" in "\n".join(lines)


def test_applications_beyond_the_letters_are_counted():
    held = [(f"app-{n}", n + 1, n + 1) for n in range(70)]
    (row,), lines = bars(pool_of(1, 1, 70, held), width=200)
    assert row == LETTERS + UNNUMBERED * 8
    assert any(line.startswith("# 8 more applications") for line in lines)


def test_a_node_that_has_left_is_not_in_the_map():
    state = pool_of(2, 1, 10)
    state.nodes[0].state = "left"
    rows, lines = bars(state)
    assert len(rows) == 1
    assert not any(line.startswith("node-0") for line in lines)
    state.nodes[1].state = "away"
    assert any(line.endswith("0/10 away") for line in bars(state)[1])


def test_an_empty_pool_has_a_map():
    assert bars(pool_pb2.PoolState())[0] == []


def test_durations_and_runs_are_short():
    for duration_s, text in (
        (0, "0s"), (0.04, "0.04s"), (9.94, "9.9s"), (35.9, "35s"), (119, "119s"), (120, "2m"),
        (7200, "2h00m"), (90000, "25h00m"), (200_000, "2d7h"),
    ):  # fmt: skip
        assert duration_text(duration_s) == text
    runs = [pool_pb2.BlockRun(first=n, last=n + (n % 2)) for n in range(1, 13, 2)]
    assert runs_text(runs) == "1-2, 3-4, 5-6, 7-8 and 2 more"
    assert runs_text([pool_pb2.BlockRun(first=4, last=4)]) == "4"
