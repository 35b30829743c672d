"""Advice about a claim: what would become of it now, and what would help it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.model import human_memory
from penstock.scheduling.blocks.placement import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.pool import Pool
    from penstock.scheduling.blocks.space import Space

MOST_PRIORITIES = 4  # that are tried, from the claim's own on
MOST_NAMED = 4  # applications in one sentence


@dataclass(frozen=True)
class Advice:
    """`reason`: why a claim has no room, or what it would get; `helps`: what would give it room."""

    reason: str
    helps: tuple[str, ...] = ()


def advice(pool: Pool, claim: Claim, now_ns: int, *, waits: bool = False) -> Advice:
    """What would become of a claim now, with figures, and what would help. Changes nothing.

    `waits`: it is in the queue already.
    """
    never = pool.never(claim)
    if never:
        return Advice(f"{never}: no release can make room for it", tuple(_if_never(pool, claim)))
    runs = place(pool.space, claim)
    if runs is not None:
        blocks = ", ".join(map(str, runs))
        return Advice(f"there is room for it: blocks {blocks}")
    victims = pool.victims_of(claim, now_ns)
    if victims:
        return Advice(f"there is room for it if {_suspended(pool, victims)}")
    return Advice(pool.shortage(claim, now_ns), tuple(_helps(pool, claim, now_ns, waits=waits)))


def _if_never(pool: Pool, claim: Claim) -> Iterator[str]:
    empty = pool.emptied()
    if claim.node in pool.space.named or not claim.node:
        if most := _most(empty, claim):
            yield f"ask for at most {_sized(claim, most).words}"
        if memory_bytes := _most_memory(empty, claim):
            memory = human_memory(memory_bytes, down=True)
            blocks = replace(claim, memory_bytes=None).words
            yield f"ask for at most {memory} of memory for {blocks}"
        if any("drains" in whys for whys in pool.space.closed.values()):
            yield "stop the draining of nodes: penstock pool drain NODE --stop"
    yield from _elsewhere(empty, claim, "is large enough", "are large enough")
    if not claim.node:
        what = f" with cards of kind {claim.kind}" if claim.kind else ""
        yield f"let another node{what} join the pool"


def _helps(pool: Pool, claim: Claim, now_ns: int, *, waits: bool) -> Iterator[str]:
    yield from _more_urgent(pool, claim, now_ns)
    yield from _later(pool, claim, now_ns)
    yield from _elsewhere(pool.space, claim, "has room for it now", "have room for it now")
    most = _most(pool.space, claim)
    if most:
        yield f"a claim of {_sized(claim, most).words} would have room now"
    if not waits:
        yield "if blocks may become free, wait for them: --wait"


def _more_urgent(pool: Pool, claim: Claim, now_ns: int) -> Iterator[str]:
    """The lowest priority with which suspension would make room."""
    running = {one.claim.priority for one in pool.applications.values() if one.phase == "running"}
    above = sorted(priority for priority in running if priority >= claim.priority)
    for priority in above[:MOST_PRIORITIES]:
        victims = pool.victims_of(replace(claim, priority=priority + 1), now_ns)
        if victims:
            yield f"with priority {priority + 1} or more, {_suspended(pool, victims)}"
            return


def _later(pool: Pool, claim: Claim, now_ns: int) -> Iterator[str]:
    """When applications that were resumed lately may be suspended, if that is enough."""
    blocks: Counter[int] = Counter()
    until_ns: dict[int, int] = {}
    names: dict[int, set[str]] = {}
    for one in pool.safe_below(claim.priority, now_ns):
        for numbers, part in pool.space.parts(one.runs):
            if claim.kind not in {"", part.card.kind} or claim.node not in {"", numbers.name}:
                continue
            at = -1 if claim.span == "pool" else pool.space.named[numbers.name]
            blocks[at] += part.blocks
            until_ns[at] = max(until_ns.get(at, 0), one.safe_until_ns)
            names.setdefault(at, set()).add(one.name)
    for at in sorted(blocks, key=lambda each: until_ns[each]):
        if blocks[at] + pool.room_on(at, claim, now_ns) < claim.blocks:
            continue
        node = pool.space.nodes[at] if at >= 0 else None
        where = f" on node {node.numbers.name}" if node else ""
        seconds = -(-(until_ns[at] - now_ns) // 10**9)
        yield (
            f"{_named(sorted(names[at]))}{where}, which was resumed lately, may be suspended in "
            f"{seconds} s: {blocks[at]} blocks"
        )
        return


def _elsewhere(space: Space, claim: Claim, has: str, have: str) -> Iterator[str]:
    """Other places, where the claim would have room in `space`."""
    if claim.node and place(space, replace(claim, node="")):
        yield f"another node {has}: claim without naming a node"
    if claim.kind and place(space, replace(claim, kind="")):
        yield f"cards of other kinds {have}: claim without --kind {claim.kind}"
    if claim.span == "card" and place(space, replace(claim, span="node")):
        yield f"several cards of one node {have}: --span node"


def _most(space: Space, claim: Claim) -> int:
    """The blocks of the largest claim of the same sort that has room in `space`."""
    most = min(claim.blocks, space.free_for(claim))
    return _largest(most, lambda blocks: place(space, _sized(claim, blocks)) is not None)


def _most_memory(space: Space, claim: Claim) -> int:
    """The most memory with which a claim of that size has room in `space`."""
    return _largest(
        claim.memory_bytes or 0,
        lambda size: place(space, replace(claim, memory_bytes=size)) is not None,
    )


def _largest(most: int, has_room: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which there is room; 0: there is none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if has_room(middle) else (low, middle - 1)
    return low


def _sized(claim: Claim, blocks: int) -> Claim:
    """A claim of the same sort with `blocks`, and memory in proportion."""
    memory = claim.memory_bytes and claim.memory_bytes * blocks // claim.blocks
    return replace(claim, blocks=blocks, memory_bytes=memory)


def _suspended(pool: Pool, names: Sequence[str]) -> str:
    blocks = sum(pool.applications[name].blocks for name in names)
    verb = "is" if len(names) == 1 else "are"
    return f"{_named(names)} {verb} suspended ({blocks} blocks)"


def _named(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"application {names[0]}"
    listed = ", ".join(names[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"applications {listed}{more}"
