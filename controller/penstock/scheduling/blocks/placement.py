"""Placement of a claim: which free blocks it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.scheduling.blocks.run import Run, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.space import Space

Home = tuple[tuple[int, int, str, int], ...]
"""Where an application ran: for each part the node's index, the card's, its model, and blocks."""


def place(space: Space, claim: Claim) -> tuple[Run, ...] | None:
    """The lowest run in one node, else the fewest nodes and cards; None: there is no room."""
    if space.free_for(claim) < claim.blocks:
        return None
    run = space.lowest(claim)
    if run is not None:
        return (run,)
    return None if claim.span == "card" else space.scattered(claim)


def home_of(space: Space, runs: Sequence[Run]) -> Home:
    """Where `runs` lie."""
    return tuple(
        (space.node_at(numbers.first), part.at, part.card.model or part.card.uuid, part.blocks)
        for numbers, part in space.parts(runs)
    )


def place_at_home(space: Space, claim: Claim, home: Home) -> tuple[Run, ...] | None:
    """Free runs on the same cards as before, or on equal ones of the same node; None: no room.

    A process that was checkpointed can only be restored there. Each former part keeps to one card.
    """
    chosen: list[Run] = []
    used: set[int] = set()
    for at, card_at, model, blocks in sorted(home, key=lambda part: -part[3]):
        node = space.nodes[at]
        if node is None or at in space.closed:
            return None
        numbers = node.numbers
        equal = [
            other
            for other, card in enumerate(numbers.cards)
            if (card.model or card.uuid) == model
            and claim.kind in {"", card.kind}
            and other not in used
        ]
        equal.sort(key=lambda other: other != card_at)  # its own card first
        for other in equal:
            card, start = numbers.cards[other], numbers.starts[other]
            if claim.memory_of(card, blocks) > node.memory_bytes[other]:
                continue
            run = next(
                (
                    Run(first, first + blocks - 1)
                    for one in node.runs(card.kind)
                    for first in [max(one.first, start)]
                    if min(one.last, start + card.blocks - 1) - first + 1 >= blocks
                ),
                None,
            )
            if run is not None:
                chosen.append(run)
                used.add(other)
                break
        else:
            return None
    return joined(chosen)
