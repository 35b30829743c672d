"""Compaction: which applications to move, so that blocks of one lie together, and free blocks too.

A move costs a pause: the application is suspended, what changes its card is copied, and it is
resumed. Moves inside one card are renumbering, and cost nothing. A plan is a list of moves in an
order in which each finds its blocks free.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.scheduling.blocks.placement import home_of, place, place_at_home
from penstock.scheduling.blocks.run import Run, total, without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.scheduling.blocks.application import Application
    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.node_space import NodeSpace
    from penstock.scheduling.blocks.space import Space

MOST_NODES = 32  # that are searched for room for one claim: those with the most free blocks
MOST_MOVES = 8  # for one claim
MOST_PLANNED = 2000  # moves of a plan that packs everything: claims wait while it is made
MOST_TRIED = 5000  # applications of such a plan that are placed, once there is a move


@dataclass(frozen=True)
class Cost:
    """What moving takes, in seconds of an application's time.

    `pause_s`: suspending and resuming, whatever is copied. `bytes_per_s`: copying to the host, or
    back. `gain_s`: what it is worth to have one run fewer, over the rest of an application's life.
    The defaults are estimates, until a pool has measured its own: PCI Express 4.0 at 80 %.
    """

    pause_s: float = 2.0
    bytes_per_s: float = 25e9
    gain_s: float = 60.0

    def of_bytes(self, moved_bytes: int) -> float:
        """Seconds for a move of so much memory; nothing moves: it is renumbering."""
        return self.pause_s + 2 * moved_bytes / self.bytes_per_s if moved_bytes else 0.0


@dataclass(frozen=True)
class Move:
    """One application's blocks, from where to where, and what that costs."""

    name: str
    source: tuple[Run, ...]
    target: tuple[Run, ...]
    moved_bytes: int
    cost_s: float


@dataclass(frozen=True)
class Plan:
    """Moves in their order.

    `room`: the claim's run afterwards, if the plan is for a claim. `is_partial`: more could be
    moved after these.
    """

    moves: tuple[Move, ...] = ()
    room: tuple[Run, ...] = ()
    is_partial: bool = False

    @property
    def cost_s(self) -> float:
        """The seconds that all applications together lose."""
        return sum(move.cost_s for move in self.moves)


def full(space: Space, on_node: Callable[[int], Sequence[Application]], cost: Cost) -> Plan:
    """Packs applications towards the lowest numbers, in the order in which they lie.

    `on_node`: the applications with blocks on a node, by its index. The plan is partial once it
    has `MOST_PLANNED` moves: the next plan goes on from there.
    """
    moves: list[Move] = []
    by_name: dict[str, Application] = {}
    tries, is_partial = 0, False
    for one in _that_may_go_lower(space, on_node):
        if len(moves) >= MOST_PLANNED or (tries >= MOST_TRIED and moves):
            is_partial = True
            break
        tries += 1
        move = _to(space, one, cost, one.claim)
        if move is None or move.target > one.runs or len(move.target) > len(one.runs):
            continue
        space.give_back(one.runs, one.claim)
        space.take(move.target, one.claim)
        moves.append(move)
        by_name[one.name] = one
    _undo(space, moves, by_name)
    return Plan(tuple(moves), is_partial=is_partial)


def _that_may_go_lower(
    space: Space, on_node: Callable[[int], Sequence[Application]]
) -> Iterator[Application]:
    """Running applications that lower blocks may be free for, in the order in which they lie.

    Looks at `space` as it is at that moment. Most nodes and applications are passed over by a
    comparison with the free runs: placing each of 100,000 would take seconds.
    """
    for at, node in enumerate(space.nodes):
        if node is None or (not node.firsts and not space.has_run_below(at, "", 1)):
            continue
        there = [one for one in on_node(at) if one.phase == "running"]
        own = [one for one in there if one.runs[0].first >= node.numbers.first]
        for one in sorted(own, key=lambda each: each.runs):
            if _may_go_lower(space, at, node, one):
                yield one


def _may_go_lower(space: Space, at: int, node: NodeSpace, one: Application) -> bool:
    """Whether there may be lower blocks for it; False is certain, True is not."""
    claim = one.claim
    if len(one.runs) > 1:
        return True
    first = one.runs[0].first
    if claim.span != "pool":  # a process keeps its cards
        start = node.numbers.starts[bisect_right(node.numbers.starts, first) - 1]
        found = bisect_left(node.lasts, start)
        return found < len(node.firsts) and node.firsts[found] < first
    if not claim.node and space.has_run_below(at, claim.kind, claim.blocks):
        return True
    for free, last in zip(node.firsts, node.lasts, strict=True):
        if free > first:
            break
        if last + 1 == first or last - free + 1 >= claim.blocks:
            return True
    return False


def room_for(
    space: Space, claim: Claim, on_node: Callable[[int], Sequence[Application]], cost: Cost
) -> Plan | None:
    """The cheapest moves after which `claim` lies in one run of one node; None: there are none.

    `on_node`: the running applications with blocks on a node, by its index.
    """
    best: Plan | None = None
    for at in _roomiest(space, claim):
        node = space.nodes[at]
        if node is None:
            continue
        there = [one for one in on_node(at) if one.phase == "running"]
        for start in _starts(node, there, claim):
            plan = _cleared(space, Run(start, start + claim.blocks - 1), claim, there, cost)
            if plan is not None and (best is None or plan.cost_s < best.cost_s):
                best = plan
    return best


def joining(space: Space, scattered: Iterable[Application], cost: Cost) -> Iterator[Move]:
    """Moves that join an application's runs, and gain more than they cost, the best first.

    Moves after which an application lies in one run come before all others.
    """
    moves = []
    for one in scattered:
        move = _to(space, one, cost, one.claim)
        if move is None:
            continue
        gain_s = cost.gain_s * (len(move.source) - len(move.target)) - move.cost_s
        if gain_s > 0:
            moves.append((len(move.target) > 1, -gain_s, move))
    for _, _, move in sorted(moves, key=lambda each: each[:2]):
        yield move


def _to(space: Space, one: Application, cost: Cost, claim: Claim) -> Move | None:
    """The move of an application to where it would be placed now, if its own blocks were free."""
    space.give_back(one.runs, claim)
    try:
        target = place(space, claim) if claim.span == "pool" else _within_home(space, one, claim)
    finally:
        space.take(one.runs, claim)
    if target is None or target == one.runs:
        return None
    return _move(space, one, target, cost)


def _within_home(space: Space, one: Application, claim: Claim) -> tuple[Run, ...] | None:
    return place_at_home(space, claim, home_of(space, one.runs))


def _move(space: Space, one: Application, target: tuple[Run, ...], cost: Cost) -> Move:
    stays: dict[tuple[str, int], int] = {}
    for numbers, part in space.parts(one.runs):
        key = (numbers.name, part.at)
        stays[key] = stays.get(key, 0) + part.blocks
    moved_bytes = 0
    for numbers, part in space.parts(target):
        key = (numbers.name, part.at)
        kept = min(part.blocks, stays.get(key, 0))
        stays[key] = stays.get(key, 0) - kept
        moved_bytes += one.claim.memory_of(part.card, part.blocks - kept)
    return Move(one.name, one.runs, target, moved_bytes, cost.of_bytes(moved_bytes))


def _undo(space: Space, moves: Sequence[Move], by_name: dict[str, Application]) -> None:
    for move in reversed(moves):
        claim = by_name[move.name].claim
        space.give_back(move.target, claim)
        space.take(move.source, claim)


def _roomiest(space: Space, claim: Claim) -> list[int]:
    """The nodes with the most free blocks among those that are large enough for the claim."""
    large = [
        (-node.free, at)
        for at, node in enumerate(space.nodes)
        if node is not None
        and at not in space.closed
        and node.size(claim.kind) >= claim.blocks
        and node.free
        and claim.node in {"", node.numbers.name}
    ]
    return [at for _, at in sorted(large)[:MOST_NODES]]


def _starts(node: NodeSpace, there: Sequence[Application], claim: Claim) -> list[int]:
    """Where a run could begin: at free runs and at applications' runs, or end with one."""
    zone = node.numbers.zones.get(claim.kind) if claim.kind else None
    first, last = zone or (node.numbers.first, node.numbers.last)
    runs = [*node.runs(), *(run for one in there for run in one.runs)]
    starts = {run.first for run in runs} | {run.last - claim.blocks + 1 for run in runs}
    return sorted(at for at in starts if first <= at and at + claim.blocks - 1 <= last)


def _cleared(
    space: Space, window: Run, claim: Claim, there: Sequence[Application], cost: Cost
) -> Plan | None:
    """The moves that clear `window`; None: something in it cannot go elsewhere."""
    inside = [one for one in there if any(_meet(run, window) for run in one.runs)]
    if not inside or len(inside) > MOST_MOVES:
        return None
    free = without((window,), sorted(run for one in inside for run in one.runs))
    nothing = replace(claim, memory_bytes=0)
    if not space.fits(free, nothing):  # somebody is there who does not move
        return None
    space.take(free, nothing)  # nobody may go there
    moves: list[Move] = []
    by_name = {one.name: one for one in inside}
    try:
        for one in sorted(inside, key=lambda each: -total(each.runs)):
            move = _away(space, one, window, cost)
            if move is None:
                return None
            moves.append(move)
            space.give_back(move.source, one.claim)
            space.take(move.target, one.claim)
            space.take(_inside(move.source, window), nothing)
    finally:
        for move in reversed(moves):
            one = by_name[move.name]
            space.give_back(_inside(move.source, window), nothing)
            _undo(space, [move], by_name)
        space.give_back(free, nothing)
    return Plan(tuple(moves), (window,))


def _away(space: Space, one: Application, window: Run, cost: Cost) -> Move | None:
    """Moves an application out of `window`, in one run; None: there is none for it."""
    nothing = replace(one.claim, memory_bytes=0)
    own = _inside(one.runs, window)
    space.give_back(one.runs, one.claim)
    space.take(own, nothing)
    target: tuple[Run, ...] | None
    try:
        if one.claim.span == "pool":
            run = space.lowest(one.claim)
            target = None if run is None else (run,)
        else:
            target = _within_home(space, one, one.claim)
    finally:
        space.give_back(own, nothing)
        space.take(one.runs, one.claim)
    return _move(space, one, target, cost) if target else None


def _inside(runs: Iterable[Run], window: Run) -> tuple[Run, ...]:
    return tuple(
        Run(max(run.first, window.first), min(run.last, window.last))
        for run in runs
        if _meet(run, window)
    )


def _meet(run: Run, other: Run) -> bool:
    return run.first <= other.last and other.first <= run.last
