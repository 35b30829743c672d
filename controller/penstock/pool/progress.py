"""Progress of applications: what reports of their nodes make of them.

An application has come as far as the last of its nodes. Only reports about the newest revision
count, so that a late report about earlier orders changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.pool.holding import MOVING
from penstock.scheduling.blocks.growth import shrunk

if TYPE_CHECKING:
    from penstock.pool.holding import Holding
    from penstock.pool.nodes import Nodes
    from penstock.pool.registry import Registry

Reached = Literal["", "running", "suspended", "failed"]
FAILED_RESUMES = 3  # after so many an application is given up


class Progress:
    """Follows applications from order to order."""

    def __init__(self, registry: Registry, nodes: Nodes) -> None:
        self._registry = registry
        self._nodes = nodes
        self.moves: dict[str, str] = {}  # those that have ended since: why not, empty if it did
        self.resizes: dict[str, str] = {}  # likewise
        self._failures: dict[str, int] = {}  # to resume, in a row

    def follow(self, node: str) -> None:
        """Looks at all applications of a node that has reported."""
        for name in list(self._registry.on_node.get(node, ())):
            one = self._registry.holdings.get(name)
            if one is not None:
                self.check(one)

    def check(self, one: Holding) -> None:
        """Takes an application to its next state, if all of its nodes have come so far."""
        self._leave_nodes(one)
        if one.state == "ending":
            return
        reached, reason = self._reached(one)
        if not reached:
            return
        if one.state == "starting":
            self._of_start(one, reached, reason)
        elif one.state in {"suspending", "unsuspending"}:
            self._of_suspension(one, reached, reason)
        elif one.state == "resuming":
            self._of_resumption(one, reached, reason)
        elif one.state in MOVING:
            self._of_move(one, reached, reason)
        elif one.state == "running" and one.ordered_blocks:
            self._of_resize(one, reached, reason)

    def _leave_nodes(self, one: Holding) -> None:
        """Notes the nodes that have ended what they had of it: all, or those that it moved from."""
        there = () if one.state == "ending" else self._registry.nodes_with(one)
        for node in one.nodes:
            link = self._nodes.known(node)
            if node not in there and link is not None and link.lacks(one.name):
                self._registry.gone_from(one, node)

    def _reached(self, one: Holding) -> tuple[Reached, str]:
        """What all nodes that an application is on have reached of the newest order."""
        states: set[str] = set()
        for node in self._registry.nodes_with(one):
            link = self._nodes.known(node)
            part = link.parts.get(one.name) if link is not None else None
            if part is None or part.revision != one.revision:
                states.add("")
            elif part.state == "failed":
                return "failed", f"node {node}: {part.reason or 'no reason was given'}"
            else:
                states.add(part.state)
        if states == {"suspended"} and one.is_suspended:
            return "suspended", ""
        if states == {"running"} and not one.is_suspended:
            return "running", ""
        return "", ""

    def _of_start(self, one: Holding, reached: Reached, reason: str) -> None:
        if reached == "failed":
            self._registry.end(one, "failed", reason)
        else:
            self._runs(one, "running")

    def _of_suspension(self, one: Holding, reached: Reached, reason: str) -> None:
        registry, now_ns = self._registry, self._registry.clock.now_ns()
        if one.state == "suspending" and reached == "suspended":
            one.suspended_since_ns, one.suspensions = now_ns, one.suspensions + 1
            starter = registry.pool.applications[one.name].starter
            registry.become(one, "suspended", f"it made room for {starter}" if starter else "")
            registry.say("suspended", one.name, reason=one.reason)
            registry.absorb(registry.pool.suspended(one.name, now_ns))
        elif one.state == "suspending":
            registry.order(one, one.placed, suspended=False)
            registry.become(one, "unsuspending", f"it could not be suspended: {reason}")
            registry.say("not-suspended", one.name, reason=reason)
        elif reached == "running":
            why = one.reason
            self._runs(one, "")
            one.reason = why
            registry.absorb(registry.pool.not_suspended(one.name, now_ns))
        else:
            registry.end(one, "failed", f"it could be neither suspended nor resumed: {reason}")

    def _of_resumption(self, one: Holding, reached: Reached, reason: str) -> None:
        if reached == "running":
            self._failures.pop(one.name, None)
            if one.suspended_since_ns:
                now_ns = self._registry.clock.now_ns()
                one.suspended_for_ns += max(0, now_ns - one.suspended_since_ns)
                one.suspended_since_ns = 0
            self._runs(one, "resumed")
            return
        failures = self._failures[one.name] = self._failures.get(one.name, 0) + 1
        if failures >= FAILED_RESUMES:
            del self._failures[one.name]
            self._registry.end(one, "failed", f"it could not be resumed: {reason}")
        else:
            self._registry.order(one, one.placed, suspended=False)  # once more
            self._registry.become(one, "resuming", f"it could not be resumed yet: {reason}")

    def _of_move(self, one: Holding, reached: Reached, reason: str) -> None:
        registry, now_ns = self._registry, self._registry.clock.now_ns()
        core = registry.pool.applications[one.name]
        if one.state == "moving-out" and reached == "suspended":
            registry.order(one, core.runs, suspended=False)
            registry.become(one, "moving-in")
        elif one.state == "moving-in" and reached == "running":
            self.moves[one.name] = ""
            self._runs(one, "moved")
            registry.absorb(registry.pool.moved(one.name, now_ns))
        elif one.state in {"moving-out", "moving-in"}:
            registry.order(one, core.source, suspended=False)
            registry.become(one, "moving-back", f"it could not be moved: {reason}")
        elif reached == "running":
            self.moves[one.name] = why = one.reason
            self._runs(one, "not-moved", why)
            registry.absorb(registry.pool.not_moved(one.name, now_ns))
        else:
            registry.end(one, "failed", f"it could not be moved, nor resumed: {reason}")

    def _of_resize(self, one: Holding, reached: Reached, reason: str) -> None:
        registry, now_ns = self._registry, self._registry.clock.now_ns()
        core = registry.pool.applications[one.name]
        blocks, one.ordered_blocks = one.ordered_blocks, 0
        registry.changed.add(one.name)
        if reached == "running" and core.claim.blocks == blocks:  # it has grown
            self.resizes[one.name] = ""
            registry.say("resized", one.name, blocks=core.blocks)
        elif reached == "running":  # its nodes have taken back what is to be free
            self.resizes[one.name] = ""
            runs, actions = registry.pool.resize(one.name, blocks, now_ns)
            if runs != one.placed:
                registry.order(one, runs, suspended=False)
            registry.say("resized", one.name, blocks=core.blocks)
            registry.absorb(actions)
        else:
            self.resizes[one.name] = reason
            registry.say("not-resized", one.name, reason=reason)
            # What it got beyond its former last block can be given back; a process that was given
            # blocks elsewhere keeps what it had only together with them.
            if (
                one.before
                and shrunk(registry.pool.space, core.runs, one.before_blocks) == one.before
            ):
                _, actions = registry.pool.resize(one.name, one.before_blocks, now_ns)
                registry.absorb(actions)
            registry.order(one, core.runs, suspended=False)
        one.before, one.before_blocks = (), 0

    def _runs(self, one: Holding, event: str, reason: str = "") -> None:
        self._registry.become(one, "running")
        if event:
            self._registry.say(event, one.name, reason=reason)
