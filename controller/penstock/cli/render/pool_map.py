"""A map of a compute pool in text: a row a card, a character for some blocks, by application."""

from __future__ import annotations

import string
from bisect import bisect_left
from typing import TYPE_CHECKING

from penstock.cli.render.pool_data import count
from penstock.cli.render.pool_table import runs_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.node.rpc import ApplicationMessage, PoolMessage, PoolNodeMessage

FREE, UNNUMBERED = ".", "#"
LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red", "bright_cyan", "bright_green",
           "bright_magenta", "bright_yellow", "bright_blue", "bright_red")  # fmt: skip
MOST_ROWS = 64  # of cards; a larger pool is shown as one character a node
LEAST_BAR, LABEL_COLUMNS, FIGURES_COLUMNS = 10, 30, 12
MOST_LISTED = 10  # nodes with the most free blocks, in the map of a large pool


def map_lines(state: PoolMessage, width: int, nodes: Sequence[str] = ()) -> Iterator[str]:
    """The lines of the map as rich markup, `width` columns wide; `nodes`: only these."""
    shown = [one for one in state.nodes if one.state != "left" and (not nodes or one.name in nodes)]
    if not nodes and sum(len(one.cards) for one in shown) > MOST_ROWS:
        yield from _overview(shown, width)
    else:
        yield from _cards(state, shown, width)


class _Holders:
    """Which application holds a block, by its number."""

    def __init__(self, applications: Sequence[ApplicationMessage]) -> None:
        self.runs = sorted(
            (run.first, run.last, index)
            for index, one in enumerate(applications)
            for run in one.runs
        )
        self._lasts = [last for _, last, _ in self.runs]

    def within(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Held ranges in `first` to `last`, cut to it, each with the application's index."""
        at = bisect_left(self._lasts, first)
        while at < len(self.runs) and self.runs[at][0] <= last:
            begin, end, index = self.runs[at]
            yield max(begin, first), min(end, last), index
            at += 1


def _cards(state: PoolMessage, nodes: Sequence[PoolNodeMessage], width: int) -> Iterator[str]:
    holders = _Holders(state.applications)
    cards = [(node, card) for node in nodes for card in node.cards]
    largest = max((count(card.first, card.last) for _, card in cards), default=0)
    label = min(LABEL_COLUMNS, max((len(f"{n.name} {c.index}") for n, c in cards), default=0))
    bar = max(LEAST_BAR, width - label - FIGURES_COLUMNS - 4)
    scale = max(1, -(-largest // bar))
    letters = _letters(state, holders, cards)
    for node, card in cards:
        cells = _row(holders, card.first, card.last, scale, letters)
        name = _fitted(f"{node.name} {card.index}", label)
        mark = "" if node.state == "there" else f" {node.state}"
        used = count(card.first, card.last) - card.free_blocks
        yield f"{name} [dim]|[/dim]{cells}[dim]|[/dim] {used}/{count(card.first, card.last)}{mark}"
    yield ""
    unit = "1 block" if scale == 1 else f"{scale} blocks"
    yield f"a character is {unit}; {FREE} free; figures: held/all blocks of the card"
    unnumbered = [state.applications[one].name for one in letters if letters[one] == UNNUMBERED]
    for index, letter in letters.items():
        if letter != UNNUMBERED:
            yield _legend(state.applications[index], letter, index)
    if unnumbered:
        yield f"{UNNUMBERED} {len(unnumbered)} more applications; penstock pool status lists them"


def _letters(
    state: PoolMessage, holders: _Holders, cards: Sequence[tuple[PoolNodeMessage, object]]
) -> dict[int, str]:
    """A letter for each application on the nodes shown, in the order of their blocks."""
    found: dict[int, None] = {}
    for node in dict.fromkeys(node.name for node, _ in cards):
        one = next(known for known in state.nodes if known.name == node)
        for _, _, index in holders.within(one.first, one.last):
            found.setdefault(index)
    return {
        index: LETTERS[at] if at < len(LETTERS) else UNNUMBERED for at, index in enumerate(found)
    }


def _row(holders: _Holders, first: int, last: int, scale: int, letters: dict[int, str]) -> str:
    """A card's blocks as characters; each shows who holds the most of its blocks."""
    if not first:
        return ""
    cells: list[tuple[str, str]] = []
    for begin in range(first, last + 1, scale):
        end = min(begin + scale - 1, last)
        held: dict[int, int] = {}
        for low, high, index in holders.within(begin, end):
            held[index] = held.get(index, 0) + high - low + 1
        free = end - begin + 1 - sum(held.values())
        most = max(held, key=lambda one: (held[one], -one), default=None)
        if most is None or free > held[most]:
            cells.append((FREE, "dim"))
        else:
            cells.append((letters.get(most, UNNUMBERED), _colour(most)))
    return _joined(cells)


def _joined(cells: Sequence[tuple[str, str]]) -> str:
    """Markup for characters with styles; equal styles share one tag."""
    text, last = "", None
    for character, style in cells:
        if style != last:
            text += (f"[/{last}]" if last else "") + f"[{style}]"
            last = style
        text += character
    return text + (f"[/{last}]" if last else "")


def _legend(one: ApplicationMessage, letter: str, index: int) -> str:
    from rich.markup import escape

    colour = _colour(index)
    phase = "" if one.phase == "running" else f", {one.phase}"
    return (
        f"[{colour}]{letter}[/{colour}] {escape(one.name)}: {one.blocks} blocks "
        f"({runs_text(one.runs)}), priority {one.priority}{phase}"
    )


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _overview(nodes: Sequence[PoolNodeMessage], width: int) -> Iterator[str]:
    """A large pool: a character a node, in the order of the numbers."""
    label = max(len(_fitted(node.name, LABEL_COLUMNS).rstrip()) for node in nodes)
    row = max(LEAST_BAR, (width - label - 1) // 10 * 10)
    for begin in range(0, len(nodes), row):
        part = nodes[begin : begin + row]
        yield f"{_fitted(part[0].name, label)} {_joined([_of_node(node) for node in part])}"
    yield ""
    yield (
        "a character is a node, in the order of the numbers: how many tenths of its blocks are "
        f"held, 0 to 9; {FREE} none, {UNNUMBERED} all; ? away, d draining"
    )
    yield from _histogram(nodes)
    roomy = sorted(nodes, key=lambda one: -one.free_blocks)[:MOST_LISTED]
    listed = ", ".join(f"{one.name} {one.free_blocks}" for one in roomy if one.free_blocks)
    if listed:
        from rich.markup import escape

        yield f"most free blocks: {escape(listed)}"
    yield "penstock pool map --node NODE shows a node's cards"


def _of_node(node: PoolNodeMessage) -> tuple[str, str]:
    blocks = count(node.first, node.last)
    if node.state == "away":
        return "?", "red"
    if node.state == "draining":
        return "d", "yellow"
    held = blocks - node.free_blocks
    if not held:
        return FREE, "dim"
    if held == blocks:
        return UNNUMBERED, "red"
    tenths = 10 * held // blocks
    return str(tenths), "green" if tenths < 5 else "yellow"


def _histogram(nodes: Sequence[PoolNodeMessage]) -> Iterator[str]:
    groups = {"empty": 0, "under half": 0, "half or more": 0, "full": 0}
    for node in nodes:
        blocks = count(node.first, node.last)
        held = blocks - node.free_blocks
        word = "empty" if not held else "full" if held == blocks else (
            "under half" if 2 * held < blocks else "half or more"
        )  # fmt: skip
        groups[word] += 1
    yield f"{len(nodes)} nodes: " + ", ".join(f"{n} {word}" for word, n in groups.items() if n)


def _fitted(name: str, columns: int) -> str:
    """`name` in exactly `columns`, shortened in the middle, where names differ least."""
    from rich.markup import escape

    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    if len(clean) > columns:
        half = (columns - 1) // 2
        clean = f"{clean[:half]}…{clean[-(columns - 1 - half) :]}"
    return escape(clean.ljust(columns))
