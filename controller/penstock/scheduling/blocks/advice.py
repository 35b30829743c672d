"""Advice about a claim: what would become of it now, and what would help it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.scheduling.blocks.placement import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.pool import Pool

MOST_PRIORITIES = 4  # that are tried, from the claim's own on
MOST_NAMED = 4  # applications in one sentence


@dataclass(frozen=True)
class Advice:
    """`reason`: why a claim has no room, or what it would get; `helps`: what would give it room."""

    reason: str
    helps: tuple[str, ...] = ()


def advice(pool: Pool, claim: Claim, now_ns: int) -> Advice:
    """What would become of a claim now, with figures, and what would help. Changes nothing."""
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
    return Advice(pool.shortage(claim, now_ns), tuple(_helps(pool, claim, now_ns)))


def _if_never(pool: Pool, claim: Claim) -> Iterator[str]:
    size = pool.space.size_for(claim)
    if claim.node in pool.space.named or not claim.node:
        if size:
            yield f"ask for at most {size} blocks"
        if pool.space.draining:
            yield "stop the draining of nodes: penstock pool drain NODE --stop"
    if claim.node:
        yield "claim without naming a node"
    else:
        what = f" with cards of kind {claim.kind}" if claim.kind else ""
        yield f"let another node{what} join the pool"


def _helps(pool: Pool, claim: Claim, now_ns: int) -> Iterator[str]:
    yield from _more_urgent(pool, claim, now_ns)
    yield from _later(pool, claim, now_ns)
    yield from _elsewhere(pool, claim)
    most = _most(pool, claim)
    if most:
        yield f"a claim of {most} blocks would have room now"
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


def _elsewhere(pool: Pool, claim: Claim) -> Iterator[str]:
    """Other places, where the claim would have room now."""
    if claim.node and place(pool.space, replace(claim, node="")):
        yield "another node has room for it now: claim without naming a node"
    if claim.kind and place(pool.space, replace(claim, kind="")):
        yield f"cards of other kinds have room for it now: claim without --kind {claim.kind}"
    if claim.span == "card" and place(pool.space, replace(claim, span="node")):
        yield "several cards of one node have room for it now: --span node"


def _most(pool: Pool, claim: Claim) -> int:
    """The largest claim of the same sort that has room now."""
    low, high = 0, min(claim.blocks - 1, pool.space.free_for(claim))
    while low < high:
        middle = (low + high + 1) // 2
        memory = claim.memory_bytes and claim.memory_bytes * middle // claim.blocks
        if place(pool.space, replace(claim, blocks=middle, memory_bytes=memory)):
            low = middle
        else:
            high = middle - 1
    return low


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
