"""Registry of a pool: the decisions' pool and the holdings, changed together.

Nothing here is durable or sent. The registry notes what has changed, and the manager writes that
before it sends orders and answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pool.event import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.pool.clock import Clock
    from penstock.pool.holding import Holding, Outcome, State
    from penstock.scheduling.blocks.actions import Action
    from penstock.scheduling.blocks.pool import Pool
    from penstock.scheduling.blocks.run import Run


class Registry:
    """All applications of a pool. Not thread-safe."""

    def __init__(self, pool: Pool, holdings: Iterable[Holding], clock: Clock) -> None:
        self.pool = pool
        self.clock = clock
        self.holdings: dict[str, Holding] = {}
        self.by_request: dict[tuple[str, str], str] = {}
        self.on_node: dict[str, set[str]] = {}  # names, by node
        self.of_owner: dict[str, set[str]] = {}
        # What the manager has to write, send and tell.
        self.changed: set[str] = set()
        self.changed_nodes: set[str] = set()
        self.forgotten: set[tuple[str, str]] = set()  # nodes, and who is there no more
        self.events: list[Event] = []
        for one in holdings:
            self._index(one)

    # What changes

    def say(self, event: str, application: str = "", node: str = "", reason: str = "",
            **details: object) -> None:  # fmt: skip
        """Notes an event."""
        now_ns = self.clock.now_ns()
        self.events.append(Event(now_ns, event, application, node, reason, details))

    def add(self, one: Holding) -> None:
        """Adds a holding."""
        self._index(one)
        self.changed.add(one.name)

    def become(self, one: Holding, state: State, reason: str = "") -> None:
        """Changes a holding's state."""
        if one.state != state:
            one.since_ns = self.clock.now_ns()
        one.state, one.reason = state, reason
        self.changed.add(one.name)

    def nodes_with(self, one: Holding) -> list[str]:
        """The nodes on which an application is to be."""
        parts = self.pool.space.parts(one.placed)
        return list(dict.fromkeys(numbers.name for numbers, _ in parts))

    def order(self, one: Holding, runs: Sequence[Run], *, suspended: bool) -> None:
        """Changes an application's orders to its nodes: its blocks, and whether it is suspended."""
        one.placed, one.is_suspended = tuple(runs), suspended
        one.revision += 1
        for name in self.nodes_with(one):
            if name not in one.nodes:
                one.nodes = (*one.nodes, name)
                self.on_node.setdefault(name, set()).add(one.name)
        self.changed.add(one.name)
        self.changed_nodes.update(one.nodes)

    def end(self, one: Holding, outcome: Outcome, reason: str) -> None:
        """Orders an application's end; its blocks are free once its nodes report it gone.

        Without nodes that know of it, it is gone at once.
        """
        if one.state == "ending":
            return
        one.outcome, one.is_suspended, one.ordered_blocks = outcome, False, 0
        self.become(one, "ending", reason)
        self.changed_nodes.update(one.nodes)
        core = self.pool.applications.get(one.name)
        if core is not None and core.phase in {"waiting", "starting", "suspended"}:
            # It has no blocks, or has not been given them yet; nothing may be given to it now.
            self.absorb(self.pool.release(one.name, self.clock.now_ns()))
        if not one.nodes:
            self._gone(one)

    def gone_from(self, one: Holding, node: str) -> None:
        """Notes that an application is not on a node any more, or the node has left."""
        one.nodes = tuple(name for name in one.nodes if name != node)
        self.on_node.get(node, set()).discard(one.name)
        self.forgotten.add((node, one.name))
        self.changed.add(one.name)
        if not one.nodes and one.state == "ending":
            self._gone(one)

    def absorb(self, actions: Iterable[Action]) -> None:
        """Turns what the pool decided into orders for nodes."""
        for action in actions:
            one = self.holdings.get(action.name)
            if one is None or one.state == "ending":
                continue  # its nodes end it already, which gives back its blocks too
            if action.what == "start":
                self._start(one, action.runs)
            elif action.what == "suspend":
                self._suspend(one)
            elif action.what == "resume":
                self._resume(one, action.runs)
            else:
                self.end(one, "lost", one.reason or "a node with blocks of it has left the pool")
        self._follow()

    def node_has_left(self, name: str, why: str) -> None:
        """Takes a node out of the pool; its applications are lost."""
        there = [self.holdings[each] for each in self.on_node.get(name, ())]
        actions = self.pool.leave(name, self.clock.now_ns())
        for one in there:
            if one.state != "ending":
                one.reason = f"node {name} has left the pool: {why}"
            self.gone_from(one, name)
        self.say("left", node=name, reason=why)
        self.changed_nodes.add(name)
        self.absorb(actions)
        self.on_node.pop(name, None)

    # How it is done

    def _start(self, one: Holding, runs: tuple[Run, ...]) -> None:
        self.order(one, runs, suspended=False)
        self.become(one, "starting")
        self.say("granted", one.name, runs=_words(runs))

    def _suspend(self, one: Holding) -> None:
        core = self.pool.applications[one.name]
        one.ordered_blocks = 0  # a change of its size that is under way is given up
        self.order(one, core.runs, suspended=True)
        self.become(one, "suspending", f"it makes room for {core.starter}")
        self.say("suspending", one.name, reason=one.reason)

    def _resume(self, one: Holding, runs: tuple[Run, ...]) -> None:
        self.order(one, runs, suspended=False)
        self.become(one, "resuming")
        self.say("resuming", one.name, runs=_words(runs))

    def _gone(self, one: Holding) -> None:
        """Forgets an application that no node has any more."""
        del self.holdings[one.name]
        self.forgotten.add((one.holder_node, one.name))
        self.by_request.pop((one.owner, one.request_id), None)
        owned = self.of_owner[one.owner]
        owned.discard(one.name)
        if not owned:
            del self.of_owner[one.owner]
        self.changed.add(one.name)
        event = {"gone": "released", "": "released"}.get(one.outcome, one.outcome)
        self.say(event, one.name, reason=one.reason)
        if one.name in self.pool.applications:
            self.absorb(self.pool.release(one.name, self.clock.now_ns()))

    def _follow(self) -> None:
        """Lets holdings without blocks follow what became of them in the pool."""
        self.changed |= self.pool.changed
        for name in self.pool.changed:
            one, core = self.holdings.get(name), self.pool.applications.get(name)
            if one is None or core is None:
                continue
            if core.phase == "starting" and one.state == "waiting":
                self.become(one, "preparing", f"{', '.join(sorted(core.blockers)[:8])} suspend")
            elif core.phase == "waiting" and one.state == "preparing":
                self.become(one, "waiting")

    def _index(self, one: Holding) -> None:
        self.holdings[one.name] = one
        if one.request_id:
            self.by_request[one.owner, one.request_id] = one.name
        for node in one.nodes:
            self.on_node.setdefault(node, set()).add(one.name)
        self.of_owner.setdefault(one.owner, set()).add(one.name)


def _words(runs: Sequence[Run]) -> str:
    return ",".join(map(str, runs))
