"""Leases: how long a claim outlasts the signs of life of its holder."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.pool.holding import Holding
    from penstock.pool.nodes import NodeLink, Nodes
    from penstock.pool.registry import Registry

GONE_AFTER_NS = 2 * 10**9  # a node that looks for processes may miss one that begins just then
MOST_AT_ONCE = 1024  # claims wait for this look: 2 ms; of 100,000 each is looked at every 25 s
ATTACHED_AGAIN_NS = 10**9  # how soon a caller that lost its connection has to be back
LINKED_AGAIN_NS = 5 * 10**9  # the same after its agent was started anew


@dataclass(slots=True)
class Lease:
    """Signs of life of one holder. Times are of the monotonic clock."""

    kept_ns: int  # the newest sign of life
    attached: int = 0  # streams that wait for the end of the claim
    detached_ns: int = 0  # since when there are none; 0: there never were any in this process
    is_answered: bool = False  # a stream has ended in order: its caller has what it asked for


class Leases:
    """All leases of a manager that leads; after a restart each holder has a full lease."""

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._leases: dict[str, Lease] = {}
        self._round: list[str] = []  # those that are still to be looked at

    def of(self, name: str) -> Lease:
        """The lease of an application."""
        if name not in self._leases:
            self._leases[name] = Lease(time.monotonic_ns())
        return self._leases[name]

    def keep(self, name: str) -> None:
        """Notes a sign of life."""
        self.of(name).kept_ns = time.monotonic_ns()

    def attach(self, name: str) -> None:
        """Notes a stream that waits for an application."""
        lease = self.of(name)
        lease.attached += 1
        lease.is_answered = False

    def detach(self, name: str, *, answered: bool) -> None:
        """Notes the end of such a stream."""
        lease = self.of(name)
        lease.attached -= 1
        lease.kept_ns = lease.detached_ns = time.monotonic_ns()
        lease.is_answered = lease.is_answered or answered

    def drop(self, name: str) -> None:
        """Forgets an application that has ended."""
        self._leases.pop(name, None)

    def over(self, registry: Registry, nodes: Nodes) -> Iterator[tuple[Holding, str]]:
        """Applications whose holder is gone, and how that is known."""
        now_ns = time.monotonic_ns()
        for name in self._next(registry):
            one = registry.holdings.get(name)
            if one is None or one.state == "ending" or self.of(name).attached:
                continue
            why = self._ended(one, nodes, now_ns)
            if why:
                yield one, why

    def _next(self, registry: Registry) -> list[str]:
        """The applications to look at now: all of them, or the next of very many."""
        if not self._round:
            self._round = list(registry.holdings)
        now, self._round = self._round[:MOST_AT_ONCE], self._round[MOST_AT_ONCE:]
        return now

    def _ended(self, one: Holding, nodes: Nodes, now_ns: int) -> str:
        """How it is known that an application's holder is gone; empty: it is there."""
        is_granted = one.state not in {"waiting", "preparing"}
        if one.until_revoked and is_granted:
            return ""
        lease = self.of(one.name)
        node = nodes.known(one.holder_node) if one.holder_node else None
        if node is not None and not node.is_there(now_ns):
            node = None
        is_away = bool(one.holder_node) and node is None
        if not lease.is_answered and one.state in {"waiting", "preparing", "starting"}:
            return self._not_told(lease, node, now_ns, is_away=is_away)
        if is_away:
            return ""  # the node timeout decides
        if node is not None:
            return self._on_node(one, lease, node, now_ns)
        is_over = now_ns - lease.kept_ns > self._lease_ns
        return f"no KeepAlive came for {self._lease_ns / 1e9:g} s" if is_over else ""

    def _not_told(self, lease: Lease, node: NodeLink | None, now_ns: int, *, is_away: bool) -> str:
        """The same for a caller who has not been told that the application runs."""
        if lease.detached_ns and not is_away:
            linked_ns = node.linked_ns if node is not None else 0
            is_anew = linked_ns > lease.detached_ns
            since_ns, within_ns = (
                (linked_ns, LINKED_AGAIN_NS) if is_anew else (lease.detached_ns, ATTACHED_AGAIN_NS)
            )
            is_over = now_ns - since_ns > within_ns
        else:  # its node may come back, or the manager was started just now
            is_over = now_ns - lease.kept_ns > self._lease_ns
        return "its caller has gone away" if is_over else ""

    def _on_node(self, one: Holding, lease: Lease, node: NodeLink, now_ns: int) -> str:
        """The same for a holder on a node that is there."""
        if not node.has_reported or one.name in node.alive:
            return ""
        if one.name in node.was_alive:
            since_ns = max(lease.kept_ns, node.was_alive[one.name])
            is_gone = now_ns - since_ns > GONE_AFTER_NS
            return f"its holder on node {node.name} has ended" if is_gone else ""
        since_ns = max(lease.kept_ns, node.linked_ns)
        is_over = now_ns - since_ns > self._lease_ns
        return f"node {node.name} reports no holder of it" if is_over else ""
