"""Victims: which applications are suspended for a more urgent one.

The fewest suspended TFLOPS; of such choices the fewest applications; of such the least urgent, and
among equals those that have run for the shortest time.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.scheduling.blocks.application import Application
    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.space import Space

# The number of victims is the fewest possible up to so many; beyond, large ones are taken first.
MOST_COUNTED = 6


def least_cover(sizes: Mapping[int, int], deficit: int) -> Counter[int] | None:
    """How many of each size to take, for a sum of at least `deficit`; None: all are too few.

    `sizes`: how many there are of each size, all above 0. The sum is the least possible, exactly:
    sets of sums are bits of one integer, and shifting it by a size adds that size to all of them.
    """
    if deficit <= 0:
        return Counter()
    if sum(size * count for size, count in sizes.items()) < deficit:
        return None
    ordered = sorted(sizes, reverse=True)
    limit = (1 << (deficit + ordered[0])) - 1  # no sum above that can be the least
    reachable = [1]  # by the sizes from the smallest on, before each further one
    for size in reversed(ordered):
        reachable.append(_with(reachable[-1], size, min(sizes[size], -(-deficit // size)), limit))
    sums = reachable[-1] >> deficit
    total = deficit + ((sums & -sums).bit_length() - 1)
    return _fewest(sizes, ordered, total) or _largest_first(sizes, ordered, total, reachable)


def _with(sums: int, size: int, count: int, limit: int) -> int:
    """The sums that are reachable with up to `count` of `size` more."""
    step = 1
    while count > 0:  # 1, 2, 4 … of them, and what is left: all counts, in few shifts
        taken = min(step, count)
        sums |= (sums << (size * taken)) & limit
        count -= taken
        step *= 2
    return sums


def _fewest(sizes: Mapping[int, int], ordered: Sequence[int], total: int) -> Counter[int] | None:
    """The fewest that sum up to `total`, if those are few."""
    layers: list[list[int]] = [[1] + [0] * MOST_COUNTED]  # by sizes so far: sums by how many
    limit = (1 << (total + 1)) - 1
    for size in ordered:
        before = layers[-1]
        after = list(before)
        for taken in range(1, min(sizes[size], MOST_COUNTED, total // size) + 1):
            for count in range(taken, MOST_COUNTED + 1):
                if before[count - taken]:
                    after[count] |= (before[count - taken] << (size * taken)) & limit
        layers.append(after)
    count = next((one for one in range(1, MOST_COUNTED + 1) if layers[-1][one] >> total & 1), 0)
    if not count:
        return None
    found: Counter[int] = Counter()
    for at in range(len(ordered), 0, -1):
        size, before = ordered[at - 1], layers[at - 1]
        taken = 0
        while not before[count - taken] >> (total - taken * size) & 1:
            taken += 1
        if taken:
            found[size] = taken
            count -= taken
            total -= taken * size
    return found


def _largest_first(
    sizes: Mapping[int, int], ordered: Sequence[int], total: int, reachable: Sequence[int]
) -> Counter[int]:
    """As many large ones as leave a sum that the smaller ones reach."""
    found: Counter[int] = Counter()
    for at, size in enumerate(ordered):
        smaller = reachable[len(ordered) - 1 - at]
        taken = min(sizes[size], total // size)
        while not smaller >> (total - taken * size) & 1:
            taken -= 1
        if taken:
            found[size] = taken
            total -= taken * size
    return found


Victims = tuple[int, int, list[str]]
"""Blocks that are suspended, how many applications, and their names."""

MOST_TIED = 64  # nodes on which the same sum is tried with fewer applications


def best_sets(
    bounds: Iterable[tuple[int, int]], sets_on: Callable[[int], Iterable[Victims]]
) -> Iterator[list[str]]:
    """Sets of victims on one node of many, the fewest suspended blocks first.

    `bounds`: for each node the blocks that must be suspended there at least, and its index. A node
    is searched only if its bound is not above the best set so far. The sum of blocks is the least
    possible, exactly; among equal sums the number of applications is the least on the nodes
    searched, which are at least `MOST_TIED` if so many have a bound equal to that sum.
    """
    nodes = list(bounds)
    heapify(nodes)
    found: list[Victims] = []
    tied = 0
    while nodes or found:
        while nodes and (not found or nodes[0][0] <= found[0][0]):
            if found and nodes[0][0] == found[0][0]:
                tied += 1
                if found[0][1] == 1 or tied > MOST_TIED:
                    break
            for each in sets_on(heappop(nodes)[1]):
                heappush(found, each)
        if found:
            yield heappop(found)[2]


def narrow_sets(space: Space, claim: Claim, less_urgent: Iterable[Application]) -> list[Victims]:
    """Sets of victims for a claim of one kind, node or card, the fewest suspended blocks first.

    `less_urgent`: candidates in the order in which they are preferred. Only what an application
    holds in a place counts there, but all of it is suspended.
    """
    sizes: dict[str, int] = {}
    # By place, node and card (-1: any): what each could give there.
    useful: dict[tuple[int, int], dict[str, int]] = {}
    for one in less_urgent:
        sizes[one.name] = one.blocks
        for numbers, part in space.parts(one.runs):
            if claim.kind not in {"", part.card.kind} or claim.node not in {"", numbers.name}:
                continue
            at = -1 if claim.span == "pool" else space.node_at(numbers.first)
            place = (at, part.at if claim.span == "card" else -1)
            held = useful.setdefault(place, {})
            held[one.name] = held.get(one.name, 0) + part.blocks
    found: list[Victims] = []
    for place, held in useful.items():
        free = _free(space, claim, place[0])
        chosen = _chosen(held, max(1, claim.blocks - free))
        if chosen:
            found.append((sum(sizes[name] for name in chosen), len(chosen), chosen))
        if claim.blocks > free and len(held) > len(chosen):  # as large fragments as there can be
            found.append((sum(sizes[name] for name in held), len(held), list(held)))
    return sorted(found, key=lambda one: one[:2])


def _free(space: Space, claim: Claim, at: int) -> int:
    """The free blocks of the claim's kind in a node, or wherever it may lie (-1)."""
    if at < 0:
        return space.free_for(claim)
    node = space.nodes[at]
    return sum(run.blocks for run in node.runs(claim.kind)) if node else 0


def _chosen(held: Mapping[str, int], deficit: int) -> list[str]:
    """The victims in one place; none: they hold too little there."""
    cover = least_cover(Counter(held.values()), deficit)
    if cover is None:
        return []
    chosen = []
    for name, blocks in held.items():
        if cover[blocks] > 0:
            cover[blocks] -= 1
            chosen.append(name)
    return chosen
