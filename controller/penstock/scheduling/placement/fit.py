"""Fit of a Pod's request on a node: the shares that it gets or what is missing; node scores."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Literal

from penstock.model.share import NOTHING, Share
from penstock.scheduling.placement.pod_request import totals
from penstock.scheduling.placement.reasons import Shortage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.scheduling.placement.device_state import Node, Placement
    from penstock.scheduling.placement.pod_request import Ask, Request

# Whether to prefer the fullest device that fits, or the emptiest.
Policy = Literal["binpack", "spread"]
MOST_TRIES = 2000  # for Pods with several containers; a single container is tried on all devices


def why_not(node: Node, request: Request) -> Shortage | None:
    """What the node lacks for the request; None if the request fits."""
    if len(request.asks) == 1:
        ask = request.asks[0]
        free = (_free(node, at, ask, request.model, {}) for at in range(len(node.devices)))
        if sum(share is not None for share in free) >= ask.count:
            return None
        return _missing(node, ask, request.model, {})
    found = place(node, request, "binpack")
    return found if isinstance(found, Shortage) else None


def fits(node: Node, request: Request) -> bool:
    """Whether the request fits; faster than `why_not`."""
    if len(request.asks) == 1:
        ask = request.asks[0]
        free = (_free(node, at, ask, request.model, {}) for at in range(len(node.devices)))
        return sum(share is not None for share in free) >= ask.count
    return not isinstance(place(node, request, "binpack"), Shortage)


def place(node: Node, request: Request, policy: Policy) -> Placement | Shortage:
    """The shares of each container on the node, or what is missing.

    A single container is placed whenever that is possible. For several containers, at most
    `MOST_TRIES` combinations are tried, which is enough for the usual few devices and containers.
    """
    return _Search(node, request, policy).run()


def score(nodes: Sequence[Node], policy: Policy, best: int) -> list[int]:
    """The score of each node, from 0 to `best`; the most preferred node always gets `best`."""
    used = [node.used for node in nodes]
    if not used:
        return []
    low, high = min(used), max(used)
    if high - low < 1e-9:
        return [best] * len(used)
    scale = best / (high - low)
    if policy == "binpack":
        return [round((one - low) * scale) for one in used]
    return [round((high - one) * scale) for one in used]


_Taken = dict[int, Share]  # by the device's position


class _Search:
    """Backtracking search over containers, with the devices that the policy prefers first."""

    def __init__(self, node: Node, request: Request, policy: Policy) -> None:
        self._node = node
        self._request = request
        self._policy = policy
        self._order = [*request.together, *request.inits]
        self._roles = [(ask.container, ask.role) for ask in request.asks]
        self._placed: Placement = {}
        self._tries = 0
        self._missing: Shortage | None = None

    def run(self) -> Placement | Shortage:
        if self._from(0):
            return self._placed
        if self._missing is None or self._tries >= MOST_TRIES:
            return Shortage("search")
        return self._missing

    def _from(self, at: int) -> bool:
        if at == len(self._order):
            return True
        ask = self._order[at]
        beside = self._beside(ask)
        for chosen in self._choices(ask, beside):
            self._tries += 1
            self._placed[ask.container] = chosen
            if self._from(at + 1):
                return True
            del self._placed[ask.container]
            if self._tries >= MOST_TRIES:
                return False
        if self._missing is None:  # report the largest container, which is the first that fails
            self._missing = _missing(self._node, ask, self._request.model, beside)
        return False

    def _beside(self, ask: Ask) -> _Taken:
        """Each device's shares held by the Pod's other containers while this container runs."""
        if ask.role == "init":
            names = [name for name, _ in self._roles]
            earlier = set(names[: names.index(ask.container)])
            running = [n for n, role in self._roles if role == "sidecar" and n in earlier]
        else:
            running = [name for name, role in self._roles if role != "init"]
        placed = {name: self._placed[name] for name in running if name in self._placed}
        held = totals(placed, [])
        return {
            at: held[device.uuid]
            for at, device in enumerate(self._node.devices)
            if device.uuid in held
        }

    def _choices(self, ask: Ask, beside: _Taken) -> Iterator[dict[str, Share]]:
        node = self._node
        fitting = [
            (at, share)
            for at in range(len(node.devices))
            if (share := _free(node, at, ask, self._request.model, beside))
        ]
        own = {uuid for shares in self._placed.values() for uuid in shares}
        sign = 1 if self._policy == "binpack" else -1

        def preference(one: tuple[int, Share]) -> tuple[bool, float, int]:
            at, _ = one
            device = node.devices[at]
            left = min(
                node.free_bytes[at] / device.memory_bytes,
                node.free_permille[at] / device.cores_permille,
            )
            # An init container ends before the others start, so it needs no extra share on devices
            # that they use: prefer those.
            elsewhere = ask.role == "init" and device.uuid not in own
            return elsewhere, sign * left, at

        fitting.sort(key=preference)
        for several in combinations(fitting, ask.count):
            yield {node.devices[at].uuid: share for at, share in several}


def _free(node: Node, at: int, ask: Ask, model: str, beside: _Taken) -> Share | None:
    """The requested share of the device at position `at`; None if that much is not free."""
    device = node.devices[at]
    if not device.healthy or model not in {"", device.model}:
        return None
    share = ask.share(device)
    held = beside.get(at, NOTHING)
    if (
        share is None
        or share.memory_bytes > node.free_bytes[at] - held.memory_bytes
        or share.cores_permille > node.free_permille[at] - held.cores_permille
    ):
        return None
    return share


def _missing(node: Node, ask: Ask, model: str, beside: _Taken) -> Shortage:
    """The shortage for the first cause that explains why too few of the node's devices fit."""
    of_model = [at for at, one in enumerate(node.devices) if model in {"", one.model}]
    if not of_model:
        return Shortage("model" if model else "health")
    healthy = [at for at in of_model if node.devices[at].healthy]
    if not healthy:
        return Shortage("health")
    wanted = ask.count
    if len(healthy) < wanted:
        return Shortage("too-few", count=len(healthy), wanted=wanted)
    return _too_large(node, ask, healthy) or _too_full(node, ask, healthy, beside)


def _too_large(node: Node, ask: Ask, healthy: list[int]) -> Shortage | None:
    """The shortage if even empty devices would be too small, else None."""
    devices = [node.devices[at] for at in healthy]
    memory = sum(one.memory_bytes >= (ask.memory_bytes or 0) for one in devices)
    if memory < ask.count:
        return Shortage("memory-of-device", most=max(one.memory_bytes for one in devices))
    if ask.tflops is not None and sum(ask.share(one) is not None for one in devices) < ask.count:
        rated = [one.tflops for one in devices if one.tflops is not None]
        if not rated:
            return Shortage("tflops-unknown")
        return Shortage("tflops-of-device", most=int(max(rated)))
    cores = sum(one.cores_permille >= (ask.cores_permille or 0) for one in devices)
    if cores < ask.count:
        return Shortage("cores-of-device", most=max(one.cores_permille for one in devices))
    return None


def _too_full(node: Node, ask: Ask, healthy: list[int], beside: _Taken) -> Shortage:
    """How much more would have to be free on the device that is closest to fitting."""
    memory_short, cores_short, fitting = [], [], 0
    for at in healthy:
        share = ask.share(node.devices[at])
        if share is None:
            continue
        held = beside.get(at, NOTHING)
        memory = share.memory_bytes - (node.free_bytes[at] - held.memory_bytes)
        cores = share.cores_permille - (node.free_permille[at] - held.cores_permille)
        fitting += memory <= 0 and cores <= 0
        memory_short.append(memory)
        cores_short.append(cores)
    least = ask.count - 1  # `count` devices must fit, so the last of them decides
    memory, cores = sorted(memory_short)[least], sorted(cores_short)[least]
    if memory > 0 and cores > 0:
        return Shortage("memory-and-cores", memory_bytes=memory, cores_permille=cores)
    if memory > 0:
        return Shortage("memory", memory_bytes=memory)
    if cores > 0:
        return Shortage("cores", cores_permille=cores)
    if ask.count > 1:
        return Shortage("devices", count=fitting, wanted=ask.count)
    return Shortage("apart")
