"""Preemption: the choice of the Pods to evict from a node for a Pod of higher priority.

The best choice is the one whose most important Pod has the lowest priority; among equal choices,
the one with the fewest Pods, then the one with the youngest Pods. So a more important Pod stays
even if two less important Pods are evicted instead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from penstock.model.share import Share
from penstock.scheduling.placement.device_state import Node
from penstock.scheduling.placement.fit import fits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.scheduling.placement.pod_request import Ask, Request

MOST_TRIES = 200  # sets of Pods tried on one device before any sufficient set is accepted


@dataclass(frozen=True)
class Holder:
    """A Pod that holds shares of a node's devices and may be evicted."""

    uid: str
    priority: int
    since_s: float  # start time on any clock
    shares: Mapping[str, Share] = field(hash=False)  # by device UUID
    budgets: tuple[str, ...] = ()  # disruption budgets, each of which limits evictions


def choose(
    node: Node,
    request: Request,
    priority: int,
    holders: Iterable[Holder],
    *,
    allowed: Mapping[str, int],
    best: Sequence[Holder] | None = None,
) -> tuple[Holder, ...] | None:
    """The Pods to evict so that `request` fits; empty if it fits already, None if nothing helps.

    Args:
        node: The node's devices with all allocations, including those of `holders`.
        request: The Pod's request.
        priority: The Pod's priority; only Pods of lower priority are chosen.
        holders: The Pods on the node.
        allowed: How many Pods of each disruption budget may be evicted.
        best: The best choice on other nodes; only a better choice is returned.
    """
    if fits(node, request):
        return ()
    lower = [
        one
        for one in holders
        if one.priority < priority and all(allowed.get(name, 0) > 0 for name in one.budgets)
    ]
    lower.sort(key=lambda one: (one.priority, -one.since_s, one.uid))
    found = None
    for part, some in _parts(node, request, lower, best):
        victims = _fewest_of_lowest(part, request, some, allowed, best)
        if victims is not None and (best is None or rank(victims) < rank(best)):
            found = best = victims
    return found


def rank(victims: Sequence[Holder]) -> tuple[int, int, int, float]:
    """The rank of a choice of victims; of two choices, the lower rank is better."""
    priorities = [one.priority for one in victims]
    if not priorities:
        return -(1 << 40), 0, 0, 0.0
    oldest_s = min(one.since_s for one in victims)
    return max(priorities), len(priorities), sum(priorities), -oldest_s


def _parts(
    node: Node, request: Request, lower: list[Holder], best: Sequence[Holder] | None
) -> Iterator[tuple[Node, list[Holder]]]:
    """The devices as independent problems if one device is enough, else all devices as one."""
    ask = request.asks[0]
    if len(request.asks) > 1 or ask.count > 1:
        yield _copy(node), lower
        return
    on_device: dict[str, list[Holder]] = {}
    for one in lower:
        for uuid in one.shares:
            on_device.setdefault(uuid, []).append(one)
    for at, device in enumerate(node.devices):
        some = on_device.get(device.uuid, [])
        if request.model in {"", device.model} and _may_do(node, at, ask, some, best):
            alone = Node([device])
            alone.take({device.uuid: node.taken(device.uuid)})
            yield alone, some


def _may_do(
    node: Node, at: int, ask: Ask, some: list[Holder], best: Sequence[Holder] | None
) -> bool:
    """Whether the device may yield a better choice than `best`; sums rule out most devices."""
    device = node.devices[at]
    share = ask.share(device)
    if share is None or not device.healthy:
        return False
    memory_bytes = share.memory_bytes - node.free_bytes[at]
    permille = share.cores_permille - node.free_permille[at]

    def would_do(shares: list[Share], most: int) -> bool:
        by_memory = sorted((one.memory_bytes for one in shares), reverse=True)
        by_cores = sorted((one.cores_permille for one in shares), reverse=True)
        return sum(by_memory[:most]) >= memory_bytes and sum(by_cores[:most]) >= permille

    if best is None:
        return would_do([one.shares[device.uuid] for one in some], len(some))
    limit = rank(best)[0]  # of a lower priority any number is better; of this one, at most as many
    lower = [one.shares[device.uuid] for one in some if one.priority < limit]
    if would_do(lower, len(lower)):
        return True
    level = [one.shares[device.uuid] for one in some if one.priority == limit]
    return bool(level) and would_do([*lower, *level], len(best))


def _copy(node: Node) -> Node:
    copy = Node(node.devices)
    copy.take({one.uuid: node.taken(one.uuid) for one in node.devices})
    return copy


def _fewest_of_lowest(
    node: Node,
    request: Request,
    some: list[Holder],
    allowed: Mapping[str, int],
    best: Sequence[Holder] | None,
) -> tuple[Holder, ...] | None:
    for level in sorted({one.priority for one in some}):
        most = len(some)
        if best is not None:
            limit = rank(best)[0]
            if level > limit:
                return None
            most = len(best) if level == limit else most
        pool = [one for one in some if one.priority <= level]
        if _fits_without(node, request, pool):
            victims = _fewest(node, request, pool, allowed, most)
            if victims is not None:
                return victims
    return None


def _fewest(
    node: Node, request: Request, pool: list[Holder], allowed: Mapping[str, int], most: int
) -> tuple[Holder, ...] | None:
    tries = 0
    for count in range(1, min(most, len(pool)) + 1):
        tries += comb(len(pool), count)
        if tries > MOST_TRIES:
            return _spare(node, request, pool, allowed)
        for several in combinations(pool, count):
            if _are_allowed(several, allowed) and _fits_without(node, request, several):
                return several
    return None


def _spare(
    node: Node, request: Request, pool: list[Holder], allowed: Mapping[str, int]
) -> tuple[Holder, ...] | None:
    """Evicts all Pods, then spares the most important it can, if there are too many sets to try."""
    going: list[Holder] = []
    for one in pool:
        if _are_allowed([*going, one], allowed):
            going.append(one)
    if not _fits_without(node, request, going):
        return None
    for one in reversed(tuple(going)):
        others = [other for other in going if other is not one]
        if _fits_without(node, request, others):
            going = others
    return tuple(going)


def _are_allowed(several: Iterable[Holder], allowed: Mapping[str, int]) -> bool:
    asked = Counter(name for one in several for name in one.budgets)
    return all(count <= allowed.get(name, 0) for name, count in asked.items())


def _fits_without(node: Node, request: Request, several: Iterable[Holder]) -> bool:
    """Whether the request fits without `several`. Changes `node` temporarily."""
    gone: dict[str, Share] = {}
    here = {device.uuid for device in node.devices}
    for one in several:
        for uuid, share in one.shares.items():
            if uuid in here:
                had = gone.get(uuid, Share(0, 0))
                gone[uuid] = Share(
                    had.memory_bytes + share.memory_bytes, had.cores_permille + share.cores_permille
                )
    node.give_back(gone)
    try:
        return fits(node, request)
    finally:
        node.take(gone)
