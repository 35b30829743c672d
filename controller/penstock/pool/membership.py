"""Membership of nodes: what a node's reports make of its place in the pool."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.pool.nodes import AWAY_AFTER_NS
from penstock.pool.orders import Orders
from penstock.scheduling.blocks.card import zone_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.pool.manager import Manager
    from penstock.pool.nodes import NodeLink
    from penstock.pool.orders import Link, Report
    from penstock.scheduling.blocks.card import Card


class Membership:
    """Lets nodes join, follows their reports, and takes out those that are silent."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def open(self, link: Link, first: Report, peer: tuple[str, int | None]) -> str:
        """Begins with a node's first report; returns why the node is refused, empty if not."""
        with self._manager.lock:
            why = self._refusal(first, peer)
            if why:
                store = self._manager.store
                link.send(Orders(store.identity, store.term, 0, refused=why))
                return why
            node = self._manager.nodes.of(first.node)
            if first.node not in self._manager.ranges:
                node.is_away = False  # it joins, which is an event of its own
            before = node.opens(link, peer)
            if before is not None:
                before.close("the node has connected anew")
            self._take(node, first)
            return ""

    def report(self, link: Link, report: Report) -> bool:
        """Takes a further report. False: another connection has replaced this one."""
        with self._manager.lock:
            node = self._manager.nodes.known(report.node)
            if node is None or node.link is not link:
                return False
            self._take(node, report)
            return True

    def heard(self, link: Link, name: str) -> bool:
        """Notes a report that says the same as the one before; waits for no operation.

        False: it may mean something else than before, and has to be taken.
        """
        node = self._manager.nodes.known(name)
        if (
            node is None
            or node.link is not link
            or node.finding
            or node.is_away
            or name in self._manager.away
        ):
            return False
        node.heard_ns, node.heard_wall_ns = time.monotonic_ns(), time.time_ns()
        return True

    def closed(self, link: Link, name: str) -> None:
        """Notes the end of a node's connection."""
        with self._manager.lock:
            node = self._manager.nodes.known(name)
            if node is not None:
                node.closes(link)  # watchers see it at the next check

    def check(self) -> None:
        """Takes out the nodes that have been silent for too long."""
        now_ns = time.monotonic_ns()
        manager = self._manager
        self._notice([*manager.nodes])
        for node in manager.nodes:
            silent_ns = now_ns - node.heard_ns
            if silent_ns <= manager.settings.node_timeout_ns or (
                node.link is not None and (silent_ns <= 2 * manager.settings.node_timeout_ns)
            ):
                continue
            if self._cards_of(node.name) is not None:
                manager.leave(node.name, f"it was silent for {silent_ns / 1e9:.0f} s")
            if node.link is not None:
                node.link.close("the node was silent for too long")
            manager.nodes.forget(node.name)

    # How it is done

    def _refusal(self, first: Report, peer: tuple[str, int | None]) -> str:
        store = self._manager.store
        if first.pool and first.pool != store.identity:
            return (
                f"the node belongs to the pool {first.pool}, and this is {store.identity}: take it "
                "out of that one first"
            )
        if first.term > store.term:
            return (
                f"the node has had orders of term {first.term}, and this manager has {store.term}: "
                "another manager leads, or the database is older than the pool"
            )
        precision = self._manager.settings.precision
        if first.precision not in {"", precision}:
            return (
                f"the node rates its cards at {first.precision}, and a block of this pool is 1 "
                f"TFLOPS at {precision}: start its agent with --pool-precision {precision}"
            )
        known = self._manager.nodes.known(first.node)
        if known is not None and known.is_another(peer):
            return (
                f"another agent is connected as node {first.node}: stop that one, or give this one "
                "another name (--node)"
            )
        return ""

    def _take(self, node: NodeLink, report: Report) -> None:
        manager = self._manager
        is_first = not node.has_reported
        node.heard_ns, node.heard_wall_ns = time.monotonic_ns(), time.time_ns()
        node.parts = {part.application: part for part in report.parts}
        node.seen = report.seen
        node.was_alive.update(dict.fromkeys(node.alive | report.alive, node.heard_ns))
        node.alive = report.alive
        node.has_reported = True
        node.version = report.version or node.version
        node.address = report.address
        if is_first or report.cards:
            node.cards = report.cards
        self._compare_cards(node)
        self._notice([node])
        if is_first:
            manager.send_to(node.name)
        with manager.changing():
            manager.progress.follow(node.name)

    def _compare_cards(self, node: NodeLink) -> None:
        """Lets the node join, or join anew where it has other cards than before."""
        offered = [
            one.card
            for one in sorted(node.cards, key=lambda one: one.index)
            if not one.left_out and one.card.blocks > 0
        ]
        held = self._cards_of(node.name)
        if held is not None:
            missing = [card.uuid for card in held if not _has(offered, card)]
            is_more = len(offered) > len(held)
            if missing:
                self._manager.leave(node.name, f"it has lost cards: {', '.join(missing[:4])}")
            elif is_more and node.name in self._manager.draining:
                node.finding = "it has more cards than the pool uses, and is draining"
                return
            elif is_more and self._manager.registry.on_node.get(node.name):
                node.finding = (
                    "it has more cards than the pool uses: they are added when it is idle"
                )
                return
            elif is_more:
                self._manager.leave(node.name, "it has more cards than before")
            else:
                node.finding = ""
                return
        if node.parts:
            node.finding = (
                f"{len(node.parts)} applications of before are there: it joins when they have ended"
            )
        elif offered:
            node.finding = ""
            self._manager.join(node.name, offered)
        else:
            node.finding = "it brings no card: " + (
                "; ".join(sorted({one.left_out for one in node.cards if one.left_out})[:4])
                or "it has none"
            )

    def _cards_of(self, name: str) -> Sequence[Card] | None:
        """The cards that the pool has of a node; None: it is not in the pool."""
        numbers = self._manager.ranges.get(name)
        return None if numbers is None else numbers.cards

    def _notice(self, nodes: Sequence[NodeLink]) -> None:
        """Tells of nodes that have gone silent, or are back.

        A connection may end for a moment: only a node that is silent for longer takes nothing new.
        """
        now_ns, manager = time.monotonic_ns(), self._manager
        there = [node for node in nodes if node.name in manager.ranges]
        silent = {node.name for node in there if now_ns - node.heard_ns >= AWAY_AFTER_NS}
        heard = {node.name for node in there} - silent
        for names, is_away in ((silent - manager.away, True), (heard & manager.away, False)):
            if names:
                manager.note_away(sorted(names), is_away=is_away)
        told = [node for node in nodes if node.is_away == node.is_there(now_ns)]
        if not told:
            return
        for node in told:
            node.is_away = not node.is_away
        why = f"nothing came from it for {AWAY_AFTER_NS // 10**9} s, or its connection ended"
        with manager.changing() as registry:
            for node in told:
                if node.name not in manager.ranges:
                    continue
                if node.is_away:
                    registry.say("away", node=node.name, reason=why)
                else:
                    registry.say("back", node=node.name)


def _has(offered: Sequence[Card], card: Card) -> bool:
    return any(
        (one.uuid, zone_order(one.kind), one.blocks, one.memory_bytes)
        == (card.uuid, zone_order(card.kind), card.blocks, card.memory_bytes)
        for one in offered
    )
