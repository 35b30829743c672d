"""Device quantities that claims and Pods request or hold, as QuotaCaps count them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.kube.objects.names import CORES_PERMILLE, DRIVER, HELD, MEMORY, PLACED, RESIZE
from penstock.kube.objects.placement import at_most, read_placement
from penstock.kube.objects.quantity import parse_whole
from penstock.kube.objects.resize_annotation import read_resize, resized
from penstock.kube.objects.resource_request import asked, containers, read_request, roles
from penstock.model import PenstockError, QuantityError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.kube.objects.api_client import Object
    from penstock.kube.objects.placement import Placement
    from penstock.scheduling.placement.pod_request import Role

FINISHED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Amounts:
    """A sum of device shares. None means that no quantity is given, so all of it is requested.

    `vgpus` is None for a request of all devices of a node that is not known yet.
    """

    vgpus: int | None = 0
    memory_bytes: int | None = 0
    cores_permille: int | None = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            _plus(self.vgpus, other.vgpus),
            _plus(self.memory_bytes, other.memory_bytes),
            _plus(self.cores_permille, other.cores_permille),
        )

    def times(self, count: int) -> Amounts:
        """The sum of `count` equal quantities."""
        return Amounts(
            *(
                None if one is None else one * count
                for one in (self.vgpus, self.memory_bytes, self.cores_permille)
            )
        )

    def most(self, other: Amounts) -> Amounts:
        """The larger of each quantity, for shares that are not held at the same time."""
        return Amounts(
            _most(self.vgpus, other.vgpus),
            _most(self.memory_bytes, other.memory_bytes),
            _most(self.cores_permille, other.cores_permille),
        )

    def __bool__(self) -> bool:
        return self.vgpus is None or self.vgpus > 0


NOTHING = Amounts()


def total(several: Iterable[Amounts]) -> Amounts:
    """The sum of quantities, in which a quantity that is not given counts as zero.

    A request of all devices of a node counts as one device until their number is known.
    """
    vgpus = memory_bytes = cores_permille = 0
    for one in several:
        vgpus += 1 if one.vgpus is None else one.vgpus
        memory_bytes += one.memory_bytes or 0
        cores_permille += one.cores_permille or 0
    return Amounts(vgpus, memory_bytes, cores_permille)


def of_pod(pod: Object) -> Amounts:
    """Counts a Pod's extended resources, but not its claims.

    The cores of a request in TFLOPS are known only once the Pod is placed. For a Pod that was
    resized, each quantity is the maximum of its original request, its current share, the share that
    it may still hold, and its requested share. A Pod that is being deleted holds its shares until
    it is gone; a finished Pod holds none.
    """
    if (pod.get("status") or {}).get("phase") in FINISHED:
        return NOTHING
    wanted = _asked(pod)
    annotations = pod["metadata"].get("annotations") or {}
    placed, held, resize = (annotations.get(name) for name in (PLACED, HELD, RESIZE))
    if not wanted or placed is None:
        return wanted
    try:
        placement = read_placement(placed)
    except PenstockError:
        return wanted
    several = [placement]
    if held:
        with contextlib.suppress(PenstockError):  # Penstock did not write this annotation
            several.append(at_most(placement, read_placement(held)))
    if resize:
        with contextlib.suppress(PenstockError):  # the webhook and the extender refuse such a Pod
            several.append(at_most(several[-1], resized(placement, read_resize(resize))))
    granted = _of_placement(several[-1], roles(pod))
    return Amounts(
        wanted.vgpus,
        max(granted.memory_bytes or 0, wanted.memory_bytes or 0),
        max(granted.cores_permille or 0, wanted.cores_permille or 0),
    )


def asks_for_vgpus(pod_spec: Object) -> bool:
    """Whether a Pod with this spec requests shares through extended resources."""
    return any(asked(one) for one, _, _ in containers({"spec": pod_spec}))


def of_claim(claim: Object, ours: Collection[str]) -> Amounts:
    """Counts a claim's allocation; before allocation, its requests for classes in `ours`."""
    allocation = (claim.get("status") or {}).get("allocation")
    if allocation is not None:
        return total(
            Amounts(1, _capacity(one, MEMORY), _capacity(one, CORES_PERMILLE))
            for one in (allocation.get("devices") or {}).get("results") or []
            if one.get("driver") == DRIVER and not one.get("adminAccess")
        )
    return of_claim_spec(claim.get("spec") or {}, ours)


def of_claim_spec(spec: Object, ours: Collection[str]) -> Amounts:
    """Counts the quantities that the spec of a claim or a claim template requests."""
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


def _of_request(request: dict[str, Any], ours: Collection[str]) -> Amounts:
    if request.get("deviceClassName") not in ours or request.get("adminAccess"):
        return NOTHING
    wanted = (request.get("capacity") or {}).get("requests") or {}
    one = Amounts(1, _quantity(wanted.get(MEMORY)), _quantity(wanted.get(CORES_PERMILLE)))
    if request.get("allocationMode") == "All":
        return Amounts(None, None, None)
    return one.times(int(request.get("count") or 1))


def _of_placement(placement: Placement, order: Iterable[tuple[str, Role]]) -> Amounts:
    """The maximum held at any moment, over all devices of the placement."""
    shares = (
        (role, total(Amounts(1, one.memory_bytes, one.cores_permille) for one in by.values()))
        for name, role in order
        if (by := placement.get(name))
    )
    return _at_any_moment(shares)


def _at_any_moment(several: Iterable[tuple[Role, Amounts]]) -> Amounts:
    """The maximum held at once by containers, which are given in start order."""
    running, alone = NOTHING, NOTHING
    for role, one in several:
        if role == "init":
            alone = alone.most(running + one)
        else:
            running += one
    return running.most(alone)


def _asked(pod: Object) -> Amounts:
    """The maximum requested at any moment; zero for an impossible request, which gets refused."""
    try:
        request = read_request(pod)
    except PenstockError:
        return NOTHING
    asks = request.asks if request else ()
    return _at_any_moment(
        (
            ask.role,
            Amounts(1, ask.memory_bytes, None if ask.tflops else ask.cores_permille).times(
                ask.count
            ),
        )
        for ask in asks
    )


def _quantity(value: object) -> int | None:
    """The value as an integer; None if it is absent, or malformed, which other checks refuse."""
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
