"""Tables of a compute pool: nodes, applications, those that wait, and moves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.cli.render.pool_data import count
from penstock.model import format_cores, human_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from penstock.node.rpc import (
        ApplicationMessage,
        BlockRunMessage,
        PoolMessage,
        PoolMoveMessage,
        PoolNodeMessage,
    )

NOT_KNOWN = "-"
MOST_RUNS = 4  # shown of one application
IN_QUEUE = frozenset({"waiting", "suspended"})
PHASE_STYLES = {
    "running": "green",
    "waiting": "yellow",
    "suspended": "yellow",
    "lost": "red",
}
NODE_STYLES = {"there": "green", "away": "red", "draining": "yellow", "left": "dim"}


def summary_lines(state: PoolMessage) -> Iterator[str]:
    """The pool in two lines of figures."""
    there = sum(node.state == "there" for node in state.nodes)
    nodes = counted(len(state.nodes), "node")
    if there < len(state.nodes):
        nodes += f", {there} of them there"
    yield (
        f"pool {state.pool}: {nodes}, led by {state.leader or 'nobody'} (term {state.term}); "
        f"a block is 1 TFLOPS at {state.precision or 'an unknown precision'}"
    )
    free = f"{state.free_blocks} free"
    if state.blocks:
        free += f" ({100 * state.free_blocks / state.blocks:.0f} %)"
    waiting = [one for one in state.applications if one.phase == "waiting"]
    suspended = [one for one in state.applications if one.phase == "suspended"]
    yield (
        f"{state.blocks} blocks: {free}, the longest free run {state.longest_run}; "
        f"{len(waiting)} waiting for {sum(one.asked_blocks for one in waiting)} blocks, "
        f"{len(suspended)} suspended with {sum(one.asked_blocks for one in suspended)}"
    )


def counted(number: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def node_table(nodes: Iterable[PoolNodeMessage]) -> Table:
    """One row a node."""
    table = _table("NODE", "STATE", "NUMBERS", ">BLOCKS", ">FREE", "CARDS", "FINDING")
    for node in nodes:
        table.add_row(
            _text(node.name),
            _styled(node.state, NODE_STYLES),
            f"{node.first}-{node.last}" if node.first else NOT_KNOWN,
            str(count(node.first, node.last)),
            str(node.free_blocks),
            _text(_cards(node)),
            _text(node.finding or NOT_KNOWN),
        )
    return table


def application_table(applications: Iterable[ApplicationMessage], now_s: float) -> Table:
    """One row an application that holds blocks."""
    table = _table(
        "APPLICATION", "OWNER", "PHASE", ">BLOCKS", "NUMBERS", "NODE", ">PRIORITY", ">SINCE"
    )
    for one in applications:
        nodes = dict.fromkeys(part.node for part in one.parts)
        table.add_row(
            _text(one.name),
            _text(one.owner or NOT_KNOWN),
            _phase(one),
            str(one.blocks),
            runs_text(one.runs) or NOT_KNOWN,
            _text(", ".join(nodes) or one.node or NOT_KNOWN),
            str(one.priority),
            since_text(one, now_s),
        )
    return table


def queue_table(applications: Iterable[ApplicationMessage], now_s: float) -> Table:
    """One row an application that waits, or waits to be resumed, in the queue's order."""
    table = _table(
        ">PLACE", "APPLICATION", "OWNER", "PHASE", ">BLOCKS", ">PRIORITY", ">SINCE", ">ON HOST",
        "REASON",
    )  # fmt: skip
    for one in applications:
        table.add_row(
            str(one.place or NOT_KNOWN),
            _text(one.name),
            _text(one.owner or NOT_KNOWN),
            _phase(one),
            str(one.asked_blocks),
            str(one.priority),
            since_text(one, now_s),
            human_memory(one.host_bytes) if one.host_bytes else NOT_KNOWN,
            _text(one.reason or NOT_KNOWN),
        )
    return table


def part_table(application: ApplicationMessage) -> Table:
    """One row for what the application has on each card."""
    table = _table("NODE", ">DEVICE", "MODEL", "NUMBERS", ">BLOCKS", ">MEMORY", ">CORES")
    for part in application.parts:
        table.add_row(
            _text(part.node),
            str(part.device_index),
            _text(part.model),
            f"{part.first}-{part.last}",
            str(count(part.first, part.last)),
            human_memory(part.memory_bytes),
            f"{format_cores(part.cores_permille)} %",
        )
    return table


def move_table(moves: Sequence[PoolMoveMessage]) -> Table:
    """The moves of a plan with what each costs."""
    table = _table("APPLICATION", "FROM", "TO", ">COPIED", ">STANDS STILL")
    for move in moves:
        table.add_row(
            _text(move.application),
            runs_text(move.source),
            runs_text(move.target),
            human_memory(move.moved_bytes),
            duration_text(move.cost.ToNanoseconds() / 1e9),
        )
    return table


def runs_text(runs: Sequence[BlockRunMessage], most: int = MOST_RUNS) -> str:
    """Block numbers such as `1-18, 64-70 and 3 more`."""
    words = [f"{one.first}-{one.last}" if one.last > one.first else str(one.first) for one in runs]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def duration_text(duration_s: float) -> str:
    """A duration for people: `0.4s`, `35s`, `12m`, `3h05m`, `2d4h`."""
    if duration_s < 10:
        return f"{duration_s:.2g}s" if duration_s else "0s"
    whole = int(duration_s)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def since_text(application: ApplicationMessage, now_s: float) -> str:
    """How long the application has been in its phase."""
    if not application.HasField("since"):
        return NOT_KNOWN
    return duration_text(max(0.0, now_s - application.since.ToNanoseconds() / 1e9))


def time_of(state: PoolMessage) -> float:
    """The time of the state by the manager's clock, in seconds since 1970."""
    return state.time.ToNanoseconds() / 1e9 if state.HasField("time") else time.time()


def printed(screen: Console, tables: Iterable[Table]) -> None:
    """Prints the tables that have rows."""
    for table in tables:
        if table.row_count:
            screen.print(table)


def _cards(node: PoolNodeMessage) -> str:
    counts: dict[str, int] = {}
    for card in node.cards:
        counts[card.model or card.kind] = counts.get(card.model or card.kind, 0) + 1
    return ", ".join(f"{number}x {name}" for name, number in counts.items()) or NOT_KNOWN


def _phase(one: ApplicationMessage) -> str:
    return _styled(one.phase, PHASE_STYLES)


def _styled(word: str, styles: dict[str, str]) -> str:
    style = styles.get(word)
    return f"[{style}]{_text(word)}[/{style}]" if style else _text(word)


def _text(text: str) -> str:
    """`text` without markup, and without characters that move the cursor."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def _table(*headings: str) -> Table:
    """A table without lines; a heading that begins with ">" has its column on the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        is_number = heading.startswith(">")
        table.add_column(
            heading.lstrip(">"),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    return table
