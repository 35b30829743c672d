"""Map of a pool for the web page: the nodes that a viewer asks for, and who holds their blocks.

A message with a whole pool is too large to be made every second, so that this reads only what one
screen shows.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.pool.history import sample_of
from penstock.pool.rpc import view
from penstock.scheduling.blocks.card import zone_order
from penstock.web import applications_data, bar_data, card_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.pool.holding import State
    from penstock.pool.manager import Manager
    from penstock.pool.registry import Registry
    from penstock.pool.rpc.leading import Leading
    from penstock.scheduling.blocks.numbering import NodeRange
    from penstock.web import Query

NODES_A_PAGE = 50
MOST_ROWS = 50  # of each list of applications
MOST_RUNS = 4  # named in a row
ANSWERS_WITHIN_S = 30.0
GIB = 1 << 30


class WebMap:
    """Returns the map for a query. For one thread that is not the server's."""

    def __init__(self, leading: Leading, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: in which the server runs."""
        self._leading = leading
        self._loop = loop

    def __call__(self, query: Query) -> dict[str, Any]:
        """The map. Raises `PenstockError` if this manager does not lead the pool."""
        work = self._leading.read(partial(pool_map, self._leading.turn().manager, query))
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWERS_WITHIN_S)


def pool_map(manager: Manager, query: Query) -> dict[str, Any]:
    """The map of a pool.

    Decisions wait while the manager's lock is held, so that it is held for short times: what
    concerns all nodes or all applications is read from copies.

    Raises:
        PenstockError: the database cannot be read.
    """
    with manager.reading() as registry:
        names, links = [*manager.ranges], [*manager.nodes]
        holdings = {**registry.holdings}
    names += [one.name for one in links if one.name not in manager.ranges and one.link is not None]
    found = [name for name in names if _matches(manager, registry, name, query.find)]
    page, pages, cut = query.cut(len(found), NODES_A_PAGE)
    now_ns = time.monotonic_ns()
    there = {one.name for one in links if one.is_there(now_ns)}
    phases = Counter(one.state for one in holdings.values())
    named = [name for name in holdings if query.find in name.lower()] if query.find else []
    with manager.reading() as registry:
        holders = _Holders(registry)
        nodes = [_node(manager, name, holders) for name in found[cut]]
        totals = _totals(registry, len(names), len(names) - len(there.intersection(names)), phases)
        waiting, suspended = _queued(registry)
        history = _history(manager)
    queued = {"waiting", "suspended"}
    shown = [name for name in dict.fromkeys(holders.names + named) if name in holdings]
    others = [name for name in shown if holdings[name].state not in queued]
    rows = _rows(manager, others[:MOST_ROWS])
    return {
        "title": "Compute pool",
        "subtitle": f"{manager.settings.leader}, pool {manager.store.identity}",
        "note": f"a block is 1 TFLOPS at {manager.settings.precision} · the same letter and "
        "colour: the same application · hatched: not running",
        "finds": "node, application or kind",
        "totals": totals,
        "find": query.find, "page": page, "pages": pages, "found": len(found),
        "nodes": nodes, "names": holders.names, "phases": holders.phases,
        "lists": [
            applications_data("Waiting", "waiting", phases["waiting"], _rows(manager, waiting),
                              "Nobody waits."),
            applications_data("Suspended", "suspended", phases["suspended"],
                              _rows(manager, suspended), "Nobody is suspended."),
            applications_data("Applications on these nodes", "", len(others), rows,
                              "No application has blocks here."),
        ],
        "history": history,
    }  # fmt: skip


class _Holders:
    """The holders of the shown blocks, by the index that stands for each."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.names: list[str] = []
        self.phases: list[str] = []
        self._at: dict[str, int] = {}

    def at(self, name: str) -> int:
        """The index of an application."""
        if name not in self._at:
            self._at[name] = len(self.names)
            self.names.append(name)
            one = self._registry.holdings.get(name)
            self.phases.append(view.phase_of(one) if one else "")
        return self._at[name]

    def on(self, numbers: NodeRange) -> dict[int, list[tuple[int, int, int, float | None]]]:
        """The held intervals of a node, by the index of the card."""
        by_card: dict[int, list[tuple[int, int, int, float | None]]] = {}
        for name in sorted(self._registry.on_node.get(numbers.name, ())):
            core = self._registry.pool.applications.get(name)
            for run in core.runs if core is not None and core.phase != "starting" else ():
                if numbers.first <= run.first <= numbers.last:
                    for part in numbers.parts(run):
                        first = numbers.starts[part.at] + part.offset
                        held = (first, first + part.blocks - 1, self.at(name), None)
                        by_card.setdefault(part.at, []).append(held)
        return by_card


def _matches(manager: Manager, registry: Registry, name: str, find: str) -> bool:
    if not find or find in name.lower():
        return True
    numbers = manager.ranges.get(name)
    cards = numbers.cards if numbers is not None else ()
    return any(find in f"{card.kind} {card.model}".lower() for card in cards) or any(
        find in each.lower() for each in tuple(registry.on_node.get(name, ()))
    )


def _node(manager: Manager, name: str, holders: _Holders) -> dict[str, Any]:
    message = view.node_message(manager, name)
    numbers = manager.ranges.get(name)
    held = holders.on(numbers) if numbers is not None else {}
    zones: dict[str, list[dict[str, Any]]] = {}
    for at, card in enumerate(message.cards):
        title = f"{card.index} {card.model or 'unknown model'}"
        blocks = card.last - card.first + 1 if card.last else 0
        bars, note = [], card.left_out or "left out"
        if blocks:
            note = f"{card.free_blocks} of {blocks} free"
            label = f"blocks {card.first}-{card.last}"
            title += f" · {card.first}-{card.last}"
            bars = [bar_data(label, card.first, blocks, held.get(at, ()))]
        zones.setdefault(card.kind, []).append(card_data(title, note, bars))
    size = message.last - message.first + 1 if message.last else 0
    return {
        "name": name, "state": message.state, "note": message.finding,
        "figures": f"{message.free_blocks} of {size} blocks free",
        "zones": [{"kind": kind, "cards": zones[kind]} for kind in sorted(zones, key=zone_order)],
    }  # fmt: skip


def _totals(
    registry: Registry, nodes: int, away: int, phases: Counter[State]
) -> list[dict[str, object]]:
    space = registry.pool.space
    size, free = space.size[""], space.free[""]
    return [
        {"label": "blocks free", "value": free, "of": size,
         "more": f"{space.longest()} in the longest run"},
        {"label": "nodes", "value": nodes, "more": f"{away} away" if away else "all there",
         "warns": away > 0},
        {"label": "running", "value": phases["running"], "more": "applications"},
        {"label": "waiting", "value": phases["waiting"], "more": "for blocks"},
        {"label": "suspended", "value": phases["suspended"], "more": "to make room"},
    ]  # fmt: skip


def _queued(registry: Registry) -> tuple[list[str], list[str]]:
    """The first of those that wait, and the first of the suspended, in the queue's order."""
    waiting: list[str] = []
    suspended: list[str] = []
    for name in registry.pool.queue:
        state = registry.holdings[name].state if name in registry.holdings else ""
        if state == "waiting" and len(waiting) < MOST_ROWS:
            waiting.append(name)
        elif state == "suspended" and len(suspended) < MOST_ROWS:
            suspended.append(name)
        elif len(waiting) == len(suspended) == MOST_ROWS:
            break
    return waiting, suspended


def _rows(manager: Manager, names: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of a list; the lock is taken for each, because a waiter's reason takes long."""
    rows = []
    for name in names:
        with manager.reading() as registry:
            if name in registry.holdings:
                rows.append(_row(manager, name))
    return rows


def _row(manager: Manager, name: str) -> dict[str, Any]:
    """An application for a list: labelled facts, and why it does not run."""
    one = manager.registry.holdings[name]
    message = view.application(manager, one)
    facts = [["priority", str(message.priority)], ["of", one.owner]]
    if message.blocks:
        facts.insert(0, ["blocks", _blocks(message.blocks, message.runs)])
    else:
        facts.insert(0, ["asks for", f"{message.asked_blocks} blocks"])
    if message.place:
        facts.append(["place", str(message.place)])
    if message.host_bytes:
        facts.append(["memory on the host", f"{message.host_bytes / GIB:.1f} GiB"])
    return {
        "name": name, "phase": message.phase, "why": message.reason, "facts": facts,
        "since": one.since_ns // 10**6,
    }  # fmt: skip


def _blocks(count: int, runs: Iterable[Any]) -> str:
    listed = [*_runs(runs)]
    more = ", …" if len(listed) > MOST_RUNS else ""
    return f"{count} ({', '.join(listed[:MOST_RUNS])}{more})"


def _runs(runs: Iterable[Any]) -> Iterator[str]:
    for run in runs:
        yield f"{run.first}-{run.last}" if run.last > run.first else str(run.first)


def _history(manager: Manager) -> dict[str, Any]:
    """The samples of the last hour, and one without a time: the pool now."""
    now = sample_of(manager.registry, 0)
    samples: list[list[int | None]] = [
        [one.time_ns // 10**6, one.held, one.waiting, one.suspended] for one in manager.history
    ]
    return {
        "unit": "blocks",
        "most": manager.registry.pool.space.size[""],
        "series": ["held", "waited for", "suspended"],
        "samples": [*samples, [None, now.held, now.waiting, now.suspended]],
    }
