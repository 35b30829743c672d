"""The compute pool: grants blocks, makes room by suspension, resumes, and serves who waits.

Every method that takes `now_ns` wants a clock that never runs backwards. Methods return the actions
that follow; until one is reported back, the blocks that it is about belong to nobody else.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from penstock.scheduling.blocks.actions import Action, Decision
from penstock.scheduling.blocks.application import Application
from penstock.scheduling.blocks.compaction import Move, Plan, full, joining, room_for
from penstock.scheduling.blocks.growth import grown, shrunk
from penstock.scheduling.blocks.placement import home_of, place, place_at_home
from penstock.scheduling.blocks.queue import Queue
from penstock.scheduling.blocks.rules import Rules
from penstock.scheduling.blocks.run import Run, without
from penstock.scheduling.blocks.state import State, hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.scheduling.blocks.card import Card
    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.numbering import NodeRange
    from penstock.scheduling.blocks.space import Closed, Space

MOST_SCANNED = 64  # of those that wait: smaller claims may be served before the first, within this
MOST_RETRIED = 4  # of those that wait: for which suspension is tried again at once


class Pool(State):
    """All decisions of one pool. Not thread-safe."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        super().__init__()
        self.queue = Queue(self.rules.ageing_ns)
        self._possible: dict[str, bool] = {}  # of those that wait, until a node joins or leaves

    @classmethod
    def restored(
        cls,
        rules: Rules,
        nodes: Iterable[tuple[str, Sequence[Card], bool]],
        applications: Iterable[Application],
        closed: Iterable[tuple[str, Closed]] = (),
    ) -> Pool:
        """The pool as it was, from what was kept of it.

        `nodes`: name, cards, and whether it is still there, of all that ever joined, in that order.
        `closed`: names of the nodes that take nothing new, and why.
        """
        pool = cls(rules)
        for at, (name, cards, is_there) in enumerate(nodes):
            pool.space.join(name, cards)
            if not is_there:
                pool.space.leave(at)
        for name, why in closed:
            pool.space.close(pool.space.named[name], why)
        for one in sorted(applications, key=lambda each: each.since_ns):
            pool._restore(one)
        return pool

    def _restore(self, one: Application) -> None:
        self.applications[one.name] = one
        if one.phase in {"waiting", "suspended"}:
            self.queue.add(one)
            return
        hold(self.space, one)
        if one.phase != "lost":
            self._place_on_nodes(one)
        if one.phase == "running":
            self._offer(one)

    # Nodes

    def join(self, name: str, cards: Sequence[Card], now_ns: int) -> tuple[NodeRange, list[Action]]:
        """Adds a node; what waits may be served now. Raises ValueError if it is there already."""
        if name in self.space.named:
            raise ValueError(f"node {name} is in the pool already")
        numbers = self.space.join(name, cards)
        self._nodes_changed()
        return numbers, self.settle(now_ns)

    def leave(self, name: str, now_ns: int) -> list[Action]:
        """Takes a node out with its blocks; applications with blocks there are lost."""
        at = self.space.named[name]
        self.space.leave(at)
        self._candidates.forget_node(at)
        self._nodes_changed()
        actions = []
        for each in self._lost_with(at):
            one = self.applications[each]
            self.changed.add(each)
            if one.phase == "starting":  # it has not begun: it may have other blocks
                self._void(one)
                one.phase = "waiting"
                self.queue.add(one)
                continue
            if one.phase == "suspended":
                self.queue.remove(one)
            else:
                self._forget(one)
            one.phase, one.since_ns = "lost", now_ns
            actions.append(Action("end", each))
        return actions + self.settle(now_ns)

    def close(self, names: Sequence[str], why: Closed, now_ns: int) -> list[Action]:
        """Lets nodes take nothing new. What has blocks there keeps them and may shrink.

        It is no victim: its blocks help nobody.
        """
        return self._close_or_open(names, lambda at: self.space.close(at, why), now_ns)

    def open(self, names: Sequence[str], why: Closed, now_ns: int) -> list[Action]:
        """Takes back that nodes are closed for that reason; what waits may be served."""
        return self._close_or_open(names, lambda at: self.space.open(at, why), now_ns)

    def _close_or_open(
        self, names: Sequence[str], change: Callable[[int], None], now_ns: int
    ) -> list[Action]:
        for at in map(self.space.named.__getitem__, names):
            change(at)
            for one in self._applications_on(at):
                if one.phase == "running":
                    self._candidates.discard(one)
                    self._offer(one)
        self._nodes_changed()
        return self.settle(now_ns)

    # Applications

    def acquire(self, name: str, claim: Claim, now_ns: int, *, wait: bool = False) -> Decision:
        """Decides on a claim. Raises ValueError if the application is there already."""
        if name in self.applications:
            raise ValueError(f"application {name} is in the pool already")
        one = Application(name, claim, now_ns)
        decision = self._decide(one, now_ns)
        if decision is None and (never := self.never(claim)):
            return Decision("refused", reason=never, is_never=True)
        if decision is None and wait:
            self.queue.add(one)
            decision = Decision("waiting")
        if decision is None:
            return Decision("refused", reason=self.shortage(claim, now_ns))
        self.changed.add(name)
        self.applications[name] = one
        return decision

    def release(self, name: str, now_ns: int) -> list[Action]:
        """Ends an application: its blocks are free, and what waits may be served."""
        one = self.applications.pop(name)
        self.changed.add(name)
        self._possible.pop(name, None)
        if one.phase in {"waiting", "suspended"}:
            self.queue.remove(one)
            return self.settle(now_ns)
        actions = []
        if one.phase == "starting":
            self._void(one)
        elif one.starter:
            actions = self._gave_back(one)
        else:
            self._forget(one)
            self._let_go(one)
            self.space.give_back(one.runs, one.claim)
        return actions + self.settle(now_ns)

    def suspended(self, name: str, now_ns: int) -> list[Action]:
        """Notes that a suspending application has given back all that it held."""
        one = self._in_phase(name, "suspending")
        one.home = home_of(self.space, one.runs)
        actions = self._gave_back(one)
        one.phase, one.runs, one.since_ns = "suspended", (), now_ns
        self.queue.add(one)
        return actions + self.settle(now_ns)

    def not_suspended(self, name: str, now_ns: int) -> list[Action]:
        """Notes that an application could not be suspended: it goes on, and is no victim again."""
        one = self._in_phase(name, "suspending")
        one.phase, one.frees_memory = "running", False
        starter, one.starter = self.applications.get(one.starter), ""
        if starter is not None and name in starter.blockers:
            self._void(starter)
            starter.phase = "waiting"
        self._let_go(one)
        self.space.take(one.runs, one.claim)
        if starter is None or starter.phase != "waiting":
            return []
        decision = self._decide(starter, now_ns)
        if decision is not None:
            return list(decision.actions)
        self.queue.add(starter)
        return self.settle(now_ns)

    def settle(self, now_ns: int) -> list[Action]:
        """Serves what waits, in its order, as far as there is room."""
        actions: list[Action] = []
        attempts = 0
        for name in self.queue.first(MOST_SCANNED):
            one = self.applications[name]
            runs = self._place_again(one, self.space)
            if runs is None and attempts < MOST_RETRIED and self._may_make_room(one, now_ns):
                attempts += 1
                self.queue.remove(one)
                decision = self._make_room(one, now_ns)
                if decision is not None:
                    self.changed.add(name)
                    self._possible.pop(name, None)
                    actions += decision.actions
                    continue
                self.queue.add(one)
            if runs is not None:
                self.queue.remove(one)
                self._possible.pop(name, None)
                was = one.phase
                if was == "suspended":
                    one.safe_until_ns = now_ns + self.rules.min_run_ns
                    one.home = ()
                self._run(one, runs, now_ns)
                actions.append(Action("start" if was == "waiting" else "resume", name, runs))
            elif now_ns - one.since_ns >= self.rules.patience_ns and self._is_possible(one):
                break
        return actions

    def resize(self, name: str, blocks: int, now_ns: int) -> tuple[tuple[Run, ...], list[Action]]:
        """Changes how many blocks a running application has: the highest go first.

        It keeps at least `Card.least_blocks` of each card that it keeps, as a claim gets them.

        Raises:
            ValueError: it does not run, or there is no room.
        """
        one = self._in_phase(name, "running")
        claim = replace(one.claim, blocks=blocks)
        if blocks > one.blocks and self.space.is_closed(one.runs):
            raise ValueError(f"it has blocks on {self._closed(one.runs)} and cannot grow there")
        self._forget(one)
        self.space.give_back(one.runs, one.claim)
        runs = (
            grown(self.space, one, claim)
            if blocks > one.blocks
            else shrunk(self.space, one.runs, blocks)
        )
        if runs is None or not self.space.fits(runs, claim):
            self.space.take(one.runs, one.claim)
            self._remember(one)
            raise ValueError(self.shortage(replace(claim, blocks=blocks - one.blocks), now_ns))
        self.space.take(runs, claim)
        one.claim, one.runs = claim, runs
        self._remember(one)
        return runs, self.settle(now_ns)

    # Compaction

    def compact(self, *, every: bool = False) -> Plan:
        """Moves that gain more than they cost; `every`: packs all towards the lowest numbers.

        Every move holds as long as nothing else has changed: `begin` says if one does not.
        """
        if every:
            return full(self.space, self._applications_on, self.rules.cost)
        running = [one for one in self.applications.values() if one.phase == "running"]
        scattered = (one for one in running if len(one.runs) > 1)
        return Plan(tuple(islice(joining(self.space, scattered, self.rules.cost), 1)))

    def room(self, claim: Claim) -> Plan | None:
        """The cheapest moves after which a claim has one run; None: there are none."""
        return room_for(self.space, claim, self._applications_on, self.rules.cost)

    def begin(self, move: Move, now_ns: int) -> bool:
        """Begins a move; report with `moved` or `not_moved`. False: it does not hold any more.

        Renumbering is done at once.
        """
        one = self.applications.get(move.name)
        if one is None or one.phase != "running" or one.runs != move.source:
            return False
        if self.space.is_closed(move.target):
            return False
        self.changed.add(move.name)
        self.space.give_back(move.source, one.claim)
        if not self.space.fits(move.target, one.claim):
            self.space.take(move.source, one.claim)
            return False
        self.space.take(move.target, one.claim)
        self._forget(one)
        one.runs = move.target
        if not move.moved_bytes:
            self._remember(one)
            return True
        one.phase, one.source, one.since_ns = "moving", move.source, now_ns
        self._keep(one, without(move.source, move.target), ())
        self._place_on_nodes(one)
        return True

    def moved(self, name: str, now_ns: int) -> list[Action]:
        """Notes that a moving application runs on its new blocks."""
        one = self._in_phase(name, "moving")
        self._let_go(one)
        self._leave_nodes(one)
        one.phase, one.source, one.since_ns = "running", (), now_ns
        self._remember(one)
        return self.settle(now_ns)

    def not_moved(self, name: str, now_ns: int) -> list[Action]:
        """Notes that a moving application goes on where it was."""
        one = self._in_phase(name, "moving")
        self._let_go(one)
        self._leave_nodes(one)
        self.space.give_back(one.runs, one.claim)
        self.space.take(one.source, one.claim)
        one.phase, one.runs, one.source, one.since_ns = "running", one.source, (), now_ns
        self._remember(one)
        return self.settle(now_ns)

    # How it is done

    def _decide(self, one: Application, now_ns: int) -> Decision | None:
        """Grants at once or by suspension; None: neither is possible now."""
        if self._is_behind(one, now_ns):
            return None
        runs = place(self.space, one.claim)
        if runs is not None:
            self._run(one, runs, now_ns)
            return Decision("granted", (Action("start", one.name, runs),))
        return self._make_room(one, now_ns)

    def _is_behind(self, one: Application, now_ns: int) -> bool:
        """Whether the first in the queue has waited long enough to be served before it."""
        for name in self.queue.first(MOST_SCANNED):
            first = self.applications[name]
            if now_ns - first.since_ns < self.rules.patience_ns:
                return False
            if self._is_possible(first):
                return first.claim.priority >= one.claim.priority
        return False

    def _is_possible(self, one: Application) -> bool:
        """Whether it would have room if it were alone: since it came, nodes may have left."""
        if one.name not in self._possible:
            self._possible[one.name] = self._place_again(one, self.emptied()) is not None
        return self._possible[one.name]

    def _nodes_changed(self) -> None:
        """Forgets what followed from which nodes there are."""
        self._possible.clear()
        self._empty = None

    def _may_make_room(self, one: Application, now_ns: int) -> bool:
        """Whether suspension could help one that waits, by the sums alone.

        When it came it could not; since then others may have run for `min_run_ns`, or begun.
        """
        if one.phase != "waiting":
            return False
        held = self._held_below(one.claim, now_ns)
        return held > 0 and held + self.space.free_for(one.claim) >= one.claim.blocks

    def _make_room(self, one: Application, now_ns: int) -> Decision | None:
        """Suspends less urgent applications, the fewest blocks of them that are enough."""
        names = self.victims_of(one.claim, now_ns)
        if not names:
            return None
        victims = [self.applications[name] for name in names]
        for victim in victims:
            self.space.give_back(victim.runs, victim.claim)
        runs = place(self.space, one.claim)
        if runs is None:
            raise AssertionError("the place that was found for a claim is gone")
        return self._promise(one, runs, victims, now_ns)

    def _lost_with(self, at: int) -> list[str]:
        """Applications that cannot go on without a node: parts of them are there, or were."""
        bound = (
            one.name
            for one in map(self.applications.__getitem__, self.queue)
            if one.claim.span != "pool" and any(part[0] == at for part in one.home)
        )
        return [*self._on_node.pop(at, ()), *bound]

    def _promise(
        self, one: Application, runs: tuple[Run, ...], victims: Sequence[Application], now_ns: int
    ) -> Decision:
        self.space.take(runs, one.claim)
        one.runs, one.phase, one.since_ns = runs, "starting", now_ns
        one.blockers = frozenset(victim.name for victim in victims)
        self._place_on_nodes(one)
        actions = []
        for victim in victims:
            self._candidates.discard(victim)
            victim.phase = "suspending"
            victim.starter = one.name
            self.changed.add(victim.name)
            memory = self.space.memory_left(victim.runs, victim.claim)
            self._keep(victim, without(victim.runs, runs), memory)
            actions.append(Action("suspend", victim.name))
        return Decision("starting", tuple(actions))

    def _gave_back(self, one: Application) -> list[Action]:
        """Frees what a suspending application held; starts the one that waited for it alone."""
        self._leave_nodes(one)
        self._let_go(one)
        starter, one.starter = self.applications.get(one.starter), ""
        if starter is None or one.name not in starter.blockers:
            return []
        self.changed.add(starter.name)
        starter.blockers -= {one.name}
        if starter.blockers:
            return []
        self._leave_nodes(starter)
        self._run(starter, starter.runs, starter.since_ns, take=False)
        return [Action("start", starter.name, starter.runs)]

    def _void(self, one: Application) -> None:
        """Takes a starting application's blocks; those that suspend for it keep what they hold."""
        self.changed.update((one.name, *one.blockers))
        self._leave_nodes(one)
        self.space.give_back(one.runs, one.claim)
        for name in one.blockers:
            victim = self.applications[name]
            self._let_go(victim)
            memory = self.space.memory_left(victim.runs, victim.claim)
            self._keep(victim, victim.runs, memory)
        one.runs, one.blockers = (), frozenset()

    @staticmethod
    def _place_again(one: Application, space: Space) -> tuple[Run, ...] | None:
        if not one.home or one.claim.span == "pool":
            return place(space, one.claim)
        return place_at_home(space, one.claim, one.home)

    def _run(
        self, one: Application, runs: tuple[Run, ...], now_ns: int, *, take: bool = True
    ) -> None:
        if take:
            self.space.take(runs, one.claim)
        self.changed.add(one.name)
        one.runs, one.phase, one.since_ns = runs, "running", now_ns
        self._remember(one)
