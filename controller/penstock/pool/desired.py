"""Desired state of a node: what each application of the pool is to have on its devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.pool.orders import PartOrder, PartShare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.pool.holding import Holding
    from penstock.pool.registry import Registry
    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.numbering import NodeRange, Part
    from penstock.scheduling.blocks.run import Run
    from penstock.scheduling.blocks.space import Space

# A virtual card takes its data from the cards of a node that it is to leave, and goes on elsewhere.
LEAVES_WITHIN_NS = 60 * 10**9


def parts_for(registry: Registry, node: str) -> tuple[PartOrder, ...]:
    """All that the pool wants on a node; what is not in it is to be ended."""
    orders = []
    for name in sorted(registry.on_node.get(node, ())):
        one = registry.holdings[name]
        claim = claim_of(registry, one)
        if not one.is_placed or claim is None:
            continue
        shares = shares_on(registry.pool.space, one.placed, claim, node)
        if shares:
            orders.append(_order(one, shares, node))
    return tuple(orders)


def graces_for(registry: Registry, node: str) -> dict[str, int]:
    """The time to end in, of the applications on a node that end with another than the usual."""
    there = (registry.holdings[name] for name in registry.on_node.get(node, ()))
    graces = {one.name: _grace_ns(registry, one, node) for one in there}
    return {name: grace_ns for name, grace_ns in graces.items() if grace_ns is not None}


def _grace_ns(registry: Registry, one: Holding, node: str) -> int | None:
    if one.state == "ending":
        return one.grace_ns
    if one.span == "pool" and node not in registry.nodes_with(one):
        return LEAVES_WITHIN_NS
    return None


def claim_of(registry: Registry, one: Holding) -> Claim | None:
    """The claim by which an application's shares are computed; None: the pool has it no more."""
    core = registry.pool.applications.get(one.name)
    if core is None:
        return None
    if one.ordered_blocks:
        return replace(core.claim, blocks=one.ordered_blocks)
    return core.claim


def shares_on(space: Space, runs: Iterable[Run], claim: Claim, node: str) -> tuple[PartShare, ...]:
    """The shares that `runs` are on the devices of a node, one for each device."""
    memory: dict[str, int] = {}
    permille: dict[str, int] = {}
    for numbers, part in space.parts(runs):
        if numbers.name == node:
            uuid = part.card.uuid
            memory[uuid] = memory.get(uuid, 0) + claim.memory_of(part.card, part.blocks)
            permille[uuid] = permille.get(uuid, 0) + part.cores_permille
    bounds = {
        card.uuid: card.memory_bytes
        for numbers in {numbers.name: numbers for numbers, _ in space.parts(runs)}.values()
        for card in numbers.cards
    }
    return tuple(
        PartShare(uuid, min(amount, bounds[uuid]), permille[uuid])
        for uuid, amount in memory.items()
    )


def parts_of(space: Space, runs: Iterable[Run]) -> list[tuple[NodeRange, Part, int]]:
    """The parts of `runs` with the number of the first block of each."""
    found = []
    for numbers, part in space.parts(runs):
        found.append((numbers, part, numbers.starts[part.at] + part.offset))
    return found


def _order(one: Holding, shares: tuple[PartShare, ...], node: str) -> PartOrder:
    return PartOrder(
        one.name,
        one.revision,
        one.is_suspended,
        shares,
        one.user,
        one.uid if node == one.holder_node else None,  # a uid means something on its own node
        one.mode,
        tuple(one.command),
        one.labels,
        one.claimed_ns,
        one.span,
    )
