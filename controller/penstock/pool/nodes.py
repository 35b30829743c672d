"""Nodes of a pool: which are connected, what they reported last, and since when they are silent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.pool.orders import Link, PartStatus, ReportedCard

AWAY_AFTER_NS = 5 * 10**9  # a report comes every second


@dataclass(slots=True)
class NodeLink:
    """What the manager knows of one node while it runs. Times are of the monotonic clock."""

    name: str
    heard_ns: int = field(default_factory=time.monotonic_ns)
    heard_wall_ns: int = 0
    link: Link | None = None
    linked_ns: int = 0
    peer: tuple[str, int | None] = ("", None)  # its connection's address, and its process
    version: str = ""
    address: str = ""  # at which its agent starts cards for other nodes
    cards: tuple[ReportedCard, ...] = ()
    parts: dict[str, PartStatus] = field(default_factory=dict)
    has_reported: bool = False  # on this connection
    seen: int = 0
    alive: frozenset[str] = frozenset()
    was_alive: dict[str, int] = field(default_factory=dict)  # on this connection: until when
    sent: int = 0  # the number of the newest orders
    without: dict[str, int] = field(default_factory=dict)  # leaving: the first orders without it
    finding: str = ""
    is_away: bool = True  # as it was told to those who watch

    def opens(self, link: Link, peer: tuple[str, int | None]) -> Link | None:
        """Notes a new connection, and returns the one that it replaces."""
        before, self.link, self.peer = self.link, link, peer
        self.linked_ns = self.heard_ns = time.monotonic_ns()
        self.has_reported = False
        self.parts, self.seen, self.alive = {}, 0, frozenset()
        self.was_alive.clear()
        return before

    def closes(self, link: Link) -> bool:
        """Notes the end of a connection. False: another one has replaced it."""
        if self.link is not link:
            return False
        self.link = None
        return True

    def is_another(self, peer: tuple[str, int | None]) -> bool:
        """Whether this node is connected and speaks, from another machine or process than `peer`.

        An agent that is started again comes from another process too: its former connection has
        ended with the former process, or is silent.
        """
        if not self.is_there(time.monotonic_ns()):
            return False
        if self.peer[1] is not None and peer[1] is not None:
            return self.peer[1] != peer[1]
        return self.peer[0] != peer[0]

    def is_there(self, now_ns: int) -> bool:
        """Whether it is connected, and speaks."""
        return self.link is not None and now_ns - self.heard_ns < AWAY_AFTER_NS

    def lacks(self, application: str) -> bool:
        """Whether it reported that an application that it was told to end is not there."""
        told = self.without.get(application)
        return (
            told is not None
            and self.has_reported
            and told <= self.seen <= self.sent
            and application not in self.parts
        )


class Nodes:
    """All nodes that are in the pool, or want to be."""

    def __init__(self) -> None:
        self._by_name: dict[str, NodeLink] = {}

    def __iter__(self) -> Iterator[NodeLink]:
        return iter(list(self._by_name.values()))

    def of(self, name: str) -> NodeLink:
        """The node of that name; it is silent so far, if nothing is known of it."""
        if name not in self._by_name:
            self._by_name[name] = NodeLink(name)
        return self._by_name[name]

    def known(self, name: str) -> NodeLink | None:
        """The node of that name, if anything is known of it."""
        return self._by_name.get(name)

    def forget(self, name: str) -> None:
        """Drops a node that has left."""
        self._by_name.pop(name, None)

    def at(self, peer: tuple[str, int | None]) -> NodeLink | None:
        """The node whose agent has this connection, or is this process."""
        by_process = None
        for one in self._by_name.values():
            if one.link is None:
                continue
            if one.peer[0] == peer[0]:
                return one
            if one.peer[1] is not None and one.peer[1] == peer[1]:
                by_process = one
        return by_process
