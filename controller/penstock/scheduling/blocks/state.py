"""State of a pool: who holds which blocks, and questions about it that change nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from penstock.scheduling.blocks.candidates import Candidates
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.placement import place
from penstock.scheduling.blocks.reach import Reach
from penstock.scheduling.blocks.run import Run
from penstock.scheduling.blocks.space import ANY, Space
from penstock.scheduling.blocks.victims import best_sets, narrow_sets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.scheduling.blocks.application import Application, Phase
    from penstock.scheduling.blocks.numbering import NodeRange
    from penstock.scheduling.blocks.victims import Victims

MOST_SEARCHED = 1024  # nodes at once, of those with enough: the lowest of them
MOST_ATTEMPTS = 8  # larger sets of victims, where the blocks of a smaller one do not fit the claim

_NO_MEMORY = Claim(1, memory_bytes=0)


class State:
    """Nodes, applications, and which of these may be suspended."""

    def __init__(self) -> None:
        self.space = Space()
        self.applications: dict[str, Application] = {}
        self._candidates = Candidates(self.space)
        self._reach = Reach(self.space, self._candidates)
        self._empty: Space | None = None  # until a node joins, leaves, drains or is away
        self._on_node: dict[int, dict[str, None]] = {}  # by node: applications with blocks there
        self.changed: set[str] = set()
        """Names of applications that have changed or ended. The caller writes and clears them."""

    # Questions

    def shortage(self, claim: Claim, now_ns: int) -> str:
        """Why a claim cannot be granted now, with figures."""
        if claim.node and (closed := self._closed_for(claim.node)):
            return f"{closed} takes nothing new"
        free = self.space.free_for(claim)
        held = self._held_below(claim, now_ns)
        where = f" on node {claim.node}" if claim.node else ""
        text = f"it asks for {claim.words}{where}; {free} are free"
        if claim.span != "pool":
            text += f", {self.space.longest_for(claim)} of them in one run"
        away = sum("is away" in whys for whys in self.space.closed.values())
        if away and not claim.node:
            text += f", without {away} node{'s' if away > 1 else ''} that cannot be reached"
        return f"{text}, and less urgent applications that can be suspended hold {held}"

    def victims_of(self, claim: Claim, now_ns: int) -> list[str]:
        """Whose suspension would make room for a claim; empty: nobody's."""
        for names in islice(self._victims(claim, now_ns), MOST_ATTEMPTS):
            victims = [self.applications[name] for name in names]
            for victim in victims:
                self.space.give_back(victim.runs, victim.claim)
            has_room = place(self.space, claim) is not None
            for victim in victims:
                self.space.take(victim.runs, victim.claim)
            if has_room:
                return names
        return []

    def safe_below(self, priority: int, now_ns: int) -> list[Application]:
        """Less urgent applications that were resumed lately, and may not be suspended yet."""
        return self._candidates.safe_below(priority, now_ns)

    def room_on(self, at: int, claim: Claim, now_ns: int) -> int:
        """The blocks for a claim on a node, or in the pool (-1): free, or of less urgent ones."""
        if at < 0:
            return self.space.free_for(claim) + self._held_below(claim, now_ns)
        held = self._candidates.held_on(at, claim.priority, claim.kind, now_ns)
        return self.space.free_on(at, claim.kind) + held

    def held_back(self, one: Application) -> str:
        """Which closed node an application is on, or waits for; empty: none."""
        if one.phase == "suspended" and one.claim.span != "pool":
            bound = [node for part in one.home if (node := self.space.nodes[part[0]]) is not None]
            return self._closed([Run(node.numbers.first, node.numbers.first) for node in bound])
        return self._closed(one.runs)

    def node_of(self, number: int) -> NodeRange | None:
        """The node with a block; None: it has left."""
        node = self.space.nodes[self.space.node_at(number)]
        return node.numbers if node else None

    def never(self, claim: Claim) -> str:
        """Why a claim can never be granted by the nodes that are there; empty: it may be."""
        if claim.node and claim.node not in self.space.named:
            return f"node {claim.node} is not in the pool"
        if claim.node and "drains" in self.space.closed.get(self.space.named[claim.node], ()):
            return f"node {claim.node} drains: it takes nothing new"
        size = self.space.size_for(claim)
        drains = any("drains" in whys for whys in self.space.closed.values())
        without = ", without nodes that drain" if drains and not claim.node else ""
        where = f"on node {claim.node}" if claim.node else "in all"
        if claim.blocks > size:
            return f"it asks for {claim.words} of {size} {where}{without}"
        if place(self.emptied(), claim) is not None:
            return ""
        if claim.span == "card":
            where = f"on one card of node {claim.node}" if claim.node else "on one card"
        elif claim.span == "node" and not claim.node:
            where = "on one node"
        return f"it asks for {claim.words}, more than there is {where} when nothing runs{without}"

    def emptied(self) -> Space:
        """The nodes with nothing on them, without those that drain: to try what can ever be."""
        if self._empty is None:
            self._empty = self.space.emptied()
        return self._empty

    # How they are answered

    def _held_below(self, claim: Claim, now_ns: int) -> int:
        """The blocks that could be taken from less urgent applications where a claim may lie."""
        if not claim.node:
            return self._candidates.held_below(claim.priority, now_ns, claim.kind)
        at = self.space.named.get(claim.node, -1)
        return self._candidates.held_on(at, claim.priority, claim.kind, now_ns)

    def _victims(self, claim: Claim, now_ns: int) -> Iterator[list[str]]:
        """Sets of victims whose blocks may be enough, the best first."""
        if claim.span == "pool" and not claim.kind and not claim.node:
            deficit = max(1, claim.blocks - self.space.free[ANY])
            while names := self._candidates.choose(claim.priority, deficit, now_ns):
                yield names
                deficit = sum(self.applications[name].blocks for name in names) + 1
            return
        if claim.node:
            at = self.space.named.get(claim.node, -1)
            yield from (names for _, _, names in self._sets_on(at, claim, now_ns))
        elif claim.span != "pool":
            nodes = self._reach.nodes(claim.blocks, claim.priority, claim.kind, now_ns)
            while searched := list(islice(nodes, MOST_SEARCHED)):
                bounds = self._bounds(claim, searched)
                yield from best_sets(bounds, lambda at: self._sets_on(at, claim, now_ns))
        else:
            below = self._candidates.below(claim.priority, now_ns)
            less_urgent = map(self.applications.__getitem__, below)
            yield from (names for _, _, names in narrow_sets(self.space, claim, less_urgent))

    def _sets_on(self, at: int, claim: Claim, now_ns: int) -> list[Victims]:
        """Sets of victims with blocks on one node."""
        node = self.space.nodes[at] if at >= 0 else None
        if node is None:
            return []
        there = self._candidates.among(self._applications_on(at), claim.priority, now_ns)
        return narrow_sets(self.space, replace(claim, node=node.numbers.name), there)

    def _bounds(self, claim: Claim, nodes: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The least that must be suspended on each of these nodes, and its index."""
        for at in nodes:
            yield max(1, claim.blocks - self.space.free_on(at, claim.kind)), at

    def _applications_on(self, at: int) -> list[Application]:
        return [self.applications[name] for name in self._on_node.get(at, ())]

    # What is indexed

    def _remember(self, one: Application) -> None:
        one.frees_memory = all(part.card.frees_memory for _, part in self.space.parts(one.runs))
        self._offer(one)
        self._place_on_nodes(one)

    def _offer(self, one: Application) -> None:
        """Makes a running application a candidate, unless its node is closed."""
        if not self.space.is_closed(one.runs):
            self._candidates.add(one)

    def _forget(self, one: Application) -> None:
        self._candidates.discard(one)
        self._leave_nodes(one)

    def _closed(self, runs: Iterable[Run]) -> str:
        """The first node of `runs` that is closed, and why; empty: none."""
        for run in runs:
            node = self.space.nodes[self.space.node_at(run.first)]
            if node is not None and (closed := self._closed_for(node.numbers.name)):
                return closed
        return ""

    def _closed_for(self, name: str) -> str:
        """A node and why it is closed; empty: it is open, or not there."""
        whys = self.space.closed.get(self.space.named.get(name, -1))
        return f"node {name}, which {' and '.join(sorted(whys))}," if whys else ""

    def _place_on_nodes(self, one: Application) -> None:
        for at in self._nodes_of(one):
            self._on_node.setdefault(at, {})[one.name] = None

    def _leave_nodes(self, one: Application) -> None:
        for at in self._nodes_of(one):
            self._on_node.get(at, {}).pop(one.name, None)

    def _nodes_of(self, one: Application) -> Iterator[int]:
        runs = (*one.runs, *one.source)
        yield from dict.fromkeys(self.space.node_at(run.first) for run in runs)

    # What changes

    def _keep(
        self, one: Application, runs: tuple[Run, ...], memory: tuple[tuple[int, int, int], ...]
    ) -> None:
        """Keeps blocks and memory from others until `one` has let go of them."""
        one.kept_runs, one.kept_bytes = runs, memory
        self.space.take(runs, _NO_MEMORY)
        self.space.reserve(memory)

    def _let_go(self, one: Application) -> None:
        self.space.give_back(one.kept_runs, _NO_MEMORY)
        self.space.reserve(one.kept_bytes, -1)
        one.kept_runs, one.kept_bytes = (), ()

    def _in_phase(self, name: str, phase: Phase) -> Application:
        """An application about to change. Raises ValueError unless it is in `phase`."""
        one = self.applications[name]
        if one.phase != phase:
            raise ValueError(f"{name} is {one.phase}, not {phase}")
        self.changed.add(name)
        return one


def hold(space: Space, one: Application) -> None:
    """Takes all that nobody else may have because of `one`."""
    if not one.starter:
        space.take(one.runs, one.claim)
    space.take(one.kept_runs, _NO_MEMORY)
    space.reserve(one.kept_bytes)
