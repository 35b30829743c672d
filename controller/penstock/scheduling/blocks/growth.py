"""Growth and shrinking of a running application: which blocks it has afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.scheduling.blocks.placement import place
from penstock.scheduling.blocks.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.scheduling.blocks.application import Application
    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.space import Space


def grown(space: Space, one: Application, claim: Claim) -> tuple[Run, ...] | None:
    """The application's runs and more blocks: behind its last run if they are free there.

    Its own blocks must be free in `space`. None: there is no room.
    """
    space.take(one.runs, one.claim)
    blocks = claim.blocks - one.blocks
    memory_bytes = claim.memory_bytes and claim.memory_bytes * blocks // claim.blocks
    more = replace(claim, blocks=blocks, memory_bytes=memory_bytes)
    found = _behind(space, one.runs[-1].last, more)
    if found is None and claim.span == "pool":
        found = place(space, more)
    space.give_back(one.runs, one.claim)
    if found is None or not (claim.span == "pool" or _is_on_cards_of(space, found, one)):
        return None
    return space.joined([*one.runs, *found])


def shrunk(space: Space, runs: Iterable[Run], blocks: int) -> tuple[Run, ...]:
    """The lowest `blocks` of `runs`: what an application keeps when it shrinks.

    It keeps of each card the smallest part that a device enforces well, or nothing; so it may keep
    a few blocks more.
    """
    kept: list[Run] = []
    left = blocks
    for run in sorted(runs):
        first = run.first
        for _, part in space.parts([run]):
            if left <= 0:
                return space.joined(kept)
            taken = min(part.blocks, max(left, part.card.least_blocks))
            kept.append(Run(first, first + taken - 1))
            first += part.blocks
            left -= taken
    return space.joined(kept)


def _behind(space: Space, last: int, more: Claim) -> tuple[Run, ...] | None:
    """Free blocks behind block `last`, else elsewhere in its node; None: there are none."""
    node = space.nodes[space.node_at(last)]
    if node is None:
        return None
    behind = Run(last + 1, last + more.blocks)
    is_one_card = node.numbers.part(last, behind.last).blocks > more.blocks
    is_free = any(
        run.first <= behind.first and behind.last <= run.last for run in node.runs(more.kind)
    )
    if is_free and (is_one_card or more.span != "card"):
        return (behind,)
    if more.span == "node" and (run := node.lowest(more)):
        return (run,)
    return None


def _is_on_cards_of(space: Space, runs: Iterable[Run], one: Application) -> bool:
    """Whether `runs` lie on cards that it has already: a process cannot get another one."""
    cards = {(numbers.name, part.at) for numbers, part in space.parts(one.runs)}
    return all((numbers.name, part.at) in cards for numbers, part in space.parts(runs))
