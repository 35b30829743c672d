"""How much of devices claims and Pods ask for, or hold: what caps count, by whichever way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.kube.names import CORES_PERMILLE, DRIVER, MEMORY, PLACED
from penstock.kube.placed import read_placement
from penstock.kube.quantity import parse_whole
from penstock.kube.request import asked, containers, read_request
from penstock.model import PenstockError, QuantityError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.kube.api import Object

FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Amounts:
    """Shares of devices, added up. None: nobody said how much, so it is as much as there is."""

    vgpus: int = 0
    memory_bytes: int | None = 0
    cores_permille: int | None = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.vgpus + other.vgpus,
            _plus(self.memory_bytes, other.memory_bytes),
            _plus(self.cores_permille, other.cores_permille),
        )

    def times(self, count: int) -> Amounts:
        """So many alike."""
        memory, cores = self.memory_bytes, self.cores_permille
        return Amounts(
            self.vgpus * count,
            None if memory is None else memory * count,
            None if cores is None else cores * count,
        )

    def most(self, other: Amounts) -> Amounts:
        """The larger of each: of things that are not held at the same time."""
        return Amounts(
            max(self.vgpus, other.vgpus),
            _most(self.memory_bytes, other.memory_bytes),
            _most(self.cores_permille, other.cores_permille),
        )

    def __bool__(self) -> bool:
        return self.vgpus > 0


NOTHING = Amounts()


def total(several: Iterable[Amounts]) -> Amounts:
    """All together; what nobody said counts as nothing: only what is granted can be added up."""
    vgpus = memory_bytes = cores_permille = 0
    for one in several:
        vgpus += one.vgpus
        memory_bytes += one.memory_bytes or 0
        cores_permille += one.cores_permille or 0
    return Amounts(vgpus, memory_bytes, cores_permille)


def of_pod(pod: Object) -> Amounts:
    """By extended resources; what was asked for in TFLOPS is known once it is placed.

    Claims are not counted here. A Pod that is being deleted holds its shares until it is gone, a
    finished one none.
    """
    if (pod.get("status") or {}).get("phase") in FINISHED:
        return NOTHING
    wanted = _asked(pod)
    placed = ((pod["metadata"].get("annotations")) or {}).get(PLACED)
    if not wanted or placed is None or wanted.cores_permille is not None:
        return wanted
    try:
        shares = [one for by in read_placement(placed).values() for one in by.values()]
    except PenstockError:
        return wanted
    return Amounts(
        wanted.vgpus,
        sum(one.memory_bytes for one in shares),
        sum(one.cores_permille for one in shares),
    )


def asks_for_vgpus(pod_spec: Object) -> bool:
    """Whether a Pod, or one made of this template, asks for shares by extended resources."""
    return any(asked(one) for one, _, _ in containers({"spec": pod_spec}))


def of_claim(claim: Object, ours: Collection[str]) -> Amounts:
    """What was allocated, or else what is asked for of the device classes `ours`."""
    allocation = (claim.get("status") or {}).get("allocation")
    if allocation is not None:
        return total(
            Amounts(1, _capacity(one, MEMORY), _capacity(one, CORES_PERMILLE))
            for one in (allocation.get("devices") or {}).get("results") or []
            if one.get("driver") == DRIVER and not one.get("adminAccess")
        )
    return of_claim_spec(claim.get("spec") or {}, ours)


def of_claim_spec(spec: Object, ours: Collection[str]) -> Amounts:
    """What a claim, or a template of claims, asks for."""
    whole = NOTHING
    for request in (spec.get("devices") or {}).get("requests") or []:
        if "exactly" in request:
            whole += _of_request(request["exactly"], ours)
            continue
        most = NOTHING
        for one in request.get("firstAvailable") or []:
            most = most.most(_of_request(one, ours))
        whole += most
    return whole


def class_of_ours(device_class: Object) -> bool | None:
    """True of a DeviceClass whose devices are ours (for a `Cache`; None: it is not)."""
    selectors = (device_class.get("spec") or {}).get("selectors") or []
    said = " ".join(str((one.get("cel") or {}).get("expression", "")) for one in selectors)
    return True if device_class["metadata"]["name"] == DRIVER or DRIVER in said else None


def _of_request(request: dict[str, Any], ours: Collection[str]) -> Amounts:
    if request.get("deviceClassName") not in ours or request.get("adminAccess"):
        return NOTHING
    wanted = (request.get("capacity") or {}).get("requests") or {}
    one = Amounts(1, _quantity(wanted.get(MEMORY)), _quantity(wanted.get(CORES_PERMILLE)))
    if request.get("allocationMode") == "All":
        return Amounts(1, None, None)  # as many as a node has
    return one.times(int(request.get("count") or 1))


def _asked(pod: Object) -> Amounts:
    """The most at any moment. Of what no device has nothing can be held: others refuse that."""
    try:
        request = read_request(pod)
    except PenstockError:
        return NOTHING
    running, alone = NOTHING, NOTHING
    asks = request.asks if request else ()
    # Containers that start before the main ones come first, as they start.
    for ask in asks:
        one = Amounts(1, ask.memory_bytes, None if ask.tflops else ask.cores_permille)
        if ask.role == "init":
            alone = alone.most(running + one.times(ask.count))
        else:
            running += one.times(ask.count)
    return running.most(alone)


def _quantity(value: object) -> int | None:
    """None where it is not said, or is nonsense: others refuse that."""
    try:
        return None if value is None else parse_whole(value)
    except QuantityError:
        return None


def _capacity(result: Object, name: str) -> int | None:
    return _quantity((result.get("consumedCapacity") or {}).get(name))


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _most(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
