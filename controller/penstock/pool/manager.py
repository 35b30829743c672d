"""Manager of a pool: carries out one operation after another, each durable before its answer.

Every operation decides in memory, writes all that changed in one transaction, and only then sends
orders to nodes and answers. If writing fails, the manager reads everything again from the database,
so that what it knows never runs ahead of what is kept.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.pool.clock import Clock
from penstock.pool.desired import graces_for, parts_for
from penstock.pool.history import History
from penstock.pool.leases import Leases
from penstock.pool.nodes import Nodes
from penstock.pool.orders import Orders
from penstock.pool.progress import Progress
from penstock.pool.registry import Registry
from penstock.pool.store import Change, NotLeadingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.model.errors import Reason
    from penstock.pool.settings import Settings
    from penstock.pool.store import Store
    from penstock.scheduling.blocks.card import Card
    from penstock.scheduling.blocks.numbering import NodeRange

REPORTED_EVERY_S = 10.0
MOST_ENDED = 10_000  # whose end is remembered, for callers that wait for it


class Manager:
    """One pool while this process leads it. Thread-safe: operations wait for each other."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        changed: Callable[[Iterable[str]], None] = lambda _: None,
        report: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        """`changed`: called with the names of changed applications, and "" for each event."""
        self.store = store
        self.settings = settings
        self.clock = Clock()
        self.nodes = Nodes()
        self.history = History()
        self.leases = Leases(settings.lease_ns)
        self.draining: set[str] = set()
        self.away: set[str] = set()  # nodes of the pool that were silent for long; not kept
        self.ended: dict[str, PenstockError] = {}  # why each application ended, newest last
        self.lock = threading.RLock()
        self.registry: Registry
        self.ranges: dict[str, NodeRange]  # of the nodes that are in the pool
        self.progress: Progress
        self._tell = changed
        self._report = report
        self._sent = 0
        self._reported_s = -REPORTED_EVERY_S
        self._is_stale = True  # the database may have something else than this process
        self._load()
        for name in self.ranges:
            self.nodes.of(name)  # its timeout begins now

    # Operations

    @contextmanager
    def reading(self) -> Iterator[Registry]:
        """The state, for questions. Raises `PenstockError` if the database cannot be read."""
        with self.lock:
            if self._is_stale:
                self._load()
            yield self.registry

    @contextmanager
    def changing(self) -> Iterator[Registry]:
        """The state, for one operation; at the end it is written, sent and told.

        Raises:
            PenstockError: the operation was refused, or nothing could be written.
        """
        with self.lock:
            if self._is_stale:
                self._load()
            try:
                yield self.registry
                self._write()
            except BaseException as error:
                refused = isinstance(error, PenstockError) and not self._has_changed()
                if not refused or isinstance(error, NotLeadingError):
                    self._is_stale = True
                    self._report_once("failed", reason=str(error))
                raise
            self._publish()

    def end_of(self, name: str) -> PenstockError | None:
        """Why an application ended; None: it is there, or nothing is known of it any more."""
        return self.ended.get(name)

    # Nodes

    def join(self, name: str, cards: Sequence[Card]) -> None:
        """Adds a node's cards to the pool."""
        with self.changing() as registry:
            numbers, actions = registry.pool.join(name, cards, self.clock.now_ns())
            self.ranges[name] = numbers
            registry.say("joined", node=name, first=numbers.first, last=numbers.last)
            registry.absorb(actions)
            self._joined.append((name, cards))

    def leave(self, name: str, why: str) -> None:
        """Takes a node out; its applications are lost."""
        with self.changing() as registry:
            registry.node_has_left(name, why)
            self._left.append(name)
            self._drain.pop(name, None)
            del self.ranges[name]
            self.draining.discard(name)
            self.away.discard(name)

    def drain(self, name: str, *, drains: bool, ends_because: str = "") -> None:
        """Lets a node take nothing new, or take it again.

        `ends_because`: applications that are there are ended for that reason; empty: they stay.

        Raises:
            PenstockError: no such node is in the pool.
        """
        with self.changing() as registry:
            if name not in self.ranges:
                raise PenstockError(
                    f"node {name} is not in the pool", "no node of that name has joined",
                    "see penstock pool status", reason="no-such-tenant",
                )  # fmt: skip
            if drains != (name in self.draining):
                self._drain[name] = drains
                change = registry.pool.close if drains else registry.pool.open
                registry.absorb(change([name], "drains", self.clock.now_ns()))
                registry.say("draining" if drains else "not-draining", node=name)
            for each in sorted(registry.on_node.get(name, ())) if ends_because else ():
                registry.end(registry.holdings[each], "released", ends_because)

    def note_away(self, names: Sequence[str], *, is_away: bool) -> None:
        """Lets nodes that cannot be reached take nothing new, or take it again."""
        with self.changing() as registry:
            (self.away.update if is_away else self.away.difference_update)(names)
            change = registry.pool.close if is_away else registry.pool.open
            registry.absorb(change(names, "is away", self.clock.now_ns()))

    def send_to(self, name: str) -> None:
        """Sends a node all that the pool wants there."""
        with self.lock:
            node = self.nodes.known(name)
            if node is None or node.link is None:
                return
            self._sent += 1
            number = (self.store.term << 32) + self._sent  # grows from manager to manager
            parts = parts_for(self.registry, name)
            for each in self.registry.on_node.get(name, ()):
                one = self.registry.holdings[each]
                if one.state == "ending" or name not in self.registry.nodes_with(one):
                    node.without.setdefault(each, number)
                else:
                    node.without.pop(each, None)  # it has come back
            node.sent = number
            graces = graces_for(self.registry, name)
            node.link.send(
                Orders(self.store.identity, self.store.term, number, parts, graces_ns=graces)
            )

    def close(self, reason: str) -> None:
        """Ends the connections to all nodes."""
        with self.lock:
            for node in self.nodes:
                if node.link is not None:
                    node.link.close(reason)

    # How it is done

    def _report_once(self, event: str, reason: str) -> None:
        """Reports what may come with every call, such as a full disk, every 10 s at most."""
        now_s = time.monotonic()
        if now_s - self._reported_s > REPORTED_EVERY_S:
            self._reported_s = now_s
            self._report(event, reason=reason)

    def _load(self) -> None:
        """Reads everything from the database."""
        pool = self.store.load(self.settings.rules, self.away)
        holdings, draining, newest_ns = self.store.load_holdings()
        times = [one.since_ns for one in pool.applications.values()]
        times += [one.safe_until_ns - self.settings.rules.min_run_ns
                  for one in pool.applications.values()]  # fmt: skip
        times += [one.since_ns for one in holdings]
        self.clock.is_at_least(max([newest_ns, *times]))
        self.draining = draining
        there = [node.numbers for node in pool.space.nodes if node is not None]
        self.ranges = {numbers.name: numbers for numbers in there}
        self.registry = Registry(pool, holdings, self.clock)
        self.progress = Progress(self.registry, self.nodes)
        self._joined: list[tuple[str, Sequence[Card]]] = []
        self._left: list[str] = []
        self._drain: dict[str, bool] = {}
        self._is_stale = False

    def _has_changed(self) -> bool:
        registry = self.registry
        core = registry.pool
        return bool(registry.changed or core.changed or self._joined or self._left or self._drain)

    def _write(self) -> None:
        registry, pool = self.registry, self.registry.pool
        names = registry.changed | pool.changed
        if not (self._has_changed() or registry.events):
            return
        self.store.commit(
            Change(
                {name: pool.applications.get(name) for name in names},
                {name: registry.holdings.get(name) for name in names},
                self._joined,
                self._left,
                self._drain,
                registry.events,
            )
        )

    def _publish(self) -> None:
        """Sends and tells what has been written."""
        registry = self.registry
        names = registry.changed | registry.pool.changed
        nodes, events = registry.changed_nodes, registry.events
        registry.changed, registry.changed_nodes, registry.events = set(), set(), []
        registry.pool.changed.clear()
        for name, drains in self._drain.items():
            (self.draining.add if drains else self.draining.discard)(name)
        self._joined, self._left, self._drain = [], [], {}
        for event in events:
            if event.event in _ENDS and event.application not in registry.holdings:
                self._remember(event.application, event.event, event.reason)
            self._report(event.event, **_fields(event.application, event.node, event.reason))
        for name in names:
            if name not in registry.holdings:
                self.leases.drop(name)
        forgotten, registry.forgotten = registry.forgotten, set()
        for at, name in forgotten:
            node = self.nodes.known(at)
            if node is not None:
                node.without.pop(name, None)
                node.was_alive.pop(name, None)  # the next of this name has another holder
        for name in nodes:
            self.send_to(name)
        if names or events:
            self._tell({*names, ""})

    def _remember(self, name: str, event: str, reason: str) -> None:
        what, why_not, error_reason = _ENDS[event]
        self.ended.pop(name, None)
        self.ended[name] = PenstockError(
            f"application {name} {what}", reason or why_not, "claim again", reason=error_reason
        )
        while len(self.ended) > MOST_ENDED:
            del self.ended[next(iter(self.ended))]


_ENDS: Mapping[str, tuple[str, str, Reason]] = {
    "released": ("was released", "its owner or an administrator released it", "not-now"),
    "withdrawn": ("was withdrawn", "its caller has gone away", "not-now"),
    "failed": ("has ended", "a node could not carry it out", "not-now"),
    "lost": ("was lost", "a node with blocks of it has left the pool", "not-now"),
    "timed-out": ("has waited in vain", "it may wait no longer", "timed-out"),
}


def _fields(application: str, node: str, reason: str) -> dict[str, str]:
    given = {"application": application, "node": node, "reason": reason}
    return {name: word for name, word in given.items() if word}
