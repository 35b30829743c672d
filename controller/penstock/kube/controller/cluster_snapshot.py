"""Cluster snapshot: the fields of nodes, devices and claims that decide where a Pod fits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.objects.device_amounts import Amounts, of_claim_spec, total
from penstock.kube.objects.names import CORES_PERMILLE, DRIVER, MEMORY
from penstock.kube.objects.quantity import parse_quantity, parse_whole
from penstock.model import QuantityError
from penstock.model.quantity import FULL_DEVICE_PERMILLE
from penstock.model.share import Share
from penstock.scheduling.placement.device_state import Device
from penstock.scheduling.placement.device_state import Node as Devices
from penstock.scheduling.placement.pod_request import Ask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from penstock.kube.objects.api_client import Object

# `device.attributes["penstock.io"].model == "NVIDIA H200"`: the most common selector.
_SELECTOR = re.compile(
    r'\s*device\.attributes\["penstock\.io"\]\.(\w+)\s*==\s*"([^"]*)"\s*|'
    r"\s*device\.driver\s*==\s*[\"']penstock\.io[\"']\s*"
)


@dataclass(frozen=True)
class Node:
    """The fields of a Node that scheduling needs."""

    name: str
    ready: bool
    cordoned: bool
    taints: tuple[tuple[str, str, str], ...]  # key, value and effect of taints that exclude Pods
    labels: Mapping[str, str]
    cpu: float  # allocatable
    memory_bytes: float
    pods: float


Usual = tuple[int, int]  # bytes of memory, permille of cores


@dataclass(frozen=True)
class SliceDevice:
    """A device that a node offers for claims."""

    pool: str
    name: str
    memory_bytes: int
    cores_permille: int
    attributes: Mapping[str, str]
    taint: str  # a taint that excludes claims; empty if none
    # The amounts for a claim that requests no quantity: the device's defaults, else all of it.
    usual_memory_bytes: int = 0
    usual_cores_permille: int = 0


@dataclass(frozen=True)
class Slice:
    """A ResourceSlice: part of a node's pool."""

    node: str
    generation: int
    devices: tuple[SliceDevice, ...]


@dataclass(frozen=True)
class Held:
    """The share of one device that a claim holds."""

    pool: str
    device: str
    share: Share


@dataclass(frozen=True)
class Asked:
    """One request of a claim, for one of our device classes or another class."""

    name: str
    device_class: str
    count: int
    memory_bytes: int | None
    cores_permille: int | None
    wanted: tuple[tuple[str, str], ...]  # attributes that its selectors require
    unread: tuple[str, ...]  # selectors that we cannot evaluate


@dataclass(frozen=True)
class Claim:
    """A ResourceClaim."""

    namespace: str
    name: str
    uid: str
    spec: Object  # empty once the claim is allocated
    requests: tuple[Asked, ...]  # the first alternative of each; empty once it is allocated
    held: tuple[Held, ...] | None  # shares of our devices; None if it is not allocated
    node: str  # the node of its allocation; empty if any node will do, or not allocated
    deleting: bool

    def amounts(self, ours: Collection[str]) -> Amounts:
        """The quantities that the claim holds, or else requests for device classes in `ours`."""
        if self.held is None:
            return of_claim_spec(self.spec, ours)
        return total(Amounts(1, h.share.memory_bytes, h.share.cores_permille) for h in self.held)


def read_node(one: Object) -> Node:
    """Reads a Node object."""
    spec, status = one.get("spec") or {}, one.get("status") or {}
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or []}
    room = status.get("allocatable") or {}
    return Node(
        one["metadata"]["name"],
        conditions.get("Ready") == "True",
        bool(spec.get("unschedulable")),
        tuple(
            (taint["key"], taint.get("value", ""), taint["effect"])
            for taint in spec.get("taints") or []
            if taint.get("effect") != "PreferNoSchedule"
        ),
        one["metadata"].get("labels") or {},
        _number(room.get("cpu")),
        _number(room.get("memory")),
        _number(room.get("pods")),
    )


def read_slice(one: Object) -> Slice | None:
    """Reads a ResourceSlice; None if it is another driver's, or its pool is not its node's.

    Our pools have the names of their nodes, so that no node can describe another node's devices.
    """
    spec = one["spec"]
    pool = spec.get("pool") or {}
    if spec.get("driver") != DRIVER or pool.get("name") != spec.get("nodeName"):
        return None
    devices = []
    for device in spec.get("devices") or []:
        inside = device.get("basic") or device
        room = inside.get("capacity") or {}
        taints = [t for t in inside.get("taints") or [] if t.get("effect") != "None"]
        devices.append(
            SliceDevice(
                pool.get("name", ""),
                device["name"],
                _whole((room.get(MEMORY) or {}).get("value")),
                _whole((room.get(CORES_PERMILLE) or {}).get("value")),
                {
                    name.removeprefix(f"{DRIVER}/"): str(next(iter(value.values()), ""))
                    for name, value in (inside.get("attributes") or {}).items()
                },
                _taint(taints[0]) if taints else "",
                *(_usual(room.get(name) or {}) for name in (MEMORY, CORES_PERMILLE)),
            )
        )
    return Slice(spec.get("nodeName", ""), pool.get("generation", 0), tuple(devices))


def read_claim(one: Object) -> Claim:
    """Reads a ResourceClaim object."""
    metadata = one["metadata"]
    allocation = (one.get("status") or {}).get("allocation")
    requests: list[Asked] = []
    held = None
    if allocation is None:
        for request in (one["spec"].get("devices") or {}).get("requests") or []:
            choice = request.get("exactly") or (request.get("firstAvailable") or [{}])[0]
            requests.append(_asked(request["name"], choice))
    else:
        held = tuple(
            Held(result["pool"], result["device"], _share(result.get("consumedCapacity") or {}))
            for result in (allocation.get("devices") or {}).get("results") or []
            if result.get("driver") == DRIVER and not result.get("adminAccess")
        )
    return Claim(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        one["spec"] if allocation is None else {},
        tuple(requests),
        held,
        _node_of(allocation or {}),
        "deletionTimestamp" in metadata,
    )


def devices_of(slices: Iterable[Slice], claims: Iterable[Claim]) -> dict[str, Devices]:
    """The devices of each node, with the shares allocated on them. Ignores outdated slices."""
    newest: dict[tuple[str, str], int] = {}
    every = list(slices)
    for one in every:
        for device in one.devices:
            key = one.node, device.pool
            newest[key] = max(newest.get(key, 0), one.generation)
    found: dict[str, list[Device]] = {}
    nodes: dict[str, str] = {}
    for one in every:
        for device in one.devices:
            if one.generation != newest[one.node, device.pool]:
                continue
            uuid = f"{device.pool}/{device.name}"
            nodes[uuid] = one.node
            found.setdefault(one.node, []).append(
                Device(
                    uuid,
                    device.attributes.get("model", device.attributes.get("productName", "")),
                    max(1, device.memory_bytes),
                    max(1, device.cores_permille),
                    healthy=not device.taint,
                )
            )
    made = {node: Devices(devices) for node, devices in found.items()}
    for claim in claims:
        for held in claim.held or ():
            uuid = f"{held.pool}/{held.device}"
            if uuid in nodes:
                made[nodes[uuid]].take({uuid: held.share})
    return made


def usual_of(slices: Iterable[Slice]) -> dict[str, Usual]:
    """The default quantities of a claim on each node, which are those of its smallest device."""
    found: dict[str, Usual] = {}
    for one in slices:
        for device in one.devices:
            memory, cores = found.get(one.node, (device.usual_memory_bytes, FULL_DEVICE_PERMILLE))
            found[one.node] = (
                min(memory, device.usual_memory_bytes), min(cores, device.usual_cores_permille),
            )  # fmt: skip
    return found


def _usual(capacity: Object) -> int:
    usual = (capacity.get("requestPolicy") or {}).get("default")
    return _whole(capacity.get("value") if usual is None else usual)


def ask_of(claim: Claim, request: Asked) -> Ask:
    """Converts a claim's request into the form that placement uses."""
    return Ask(
        f"{claim.name}/{request.name}",
        count=request.count,
        memory_bytes=request.memory_bytes,
        cores_permille=request.cores_permille,
    )


def _asked(name: str, choice: Object) -> Asked:
    wanted_amounts = (choice.get("capacity") or {}).get("requests") or {}
    wanted, unread = [], []
    for selector in choice.get("selectors") or []:
        expression = str((selector.get("cel") or {}).get("expression", ""))
        parts = [_SELECTOR.fullmatch(part) for part in expression.split("&&")]
        if all(parts):
            wanted += [(part[1], part[2]) for part in parts if part and part[1]]
        else:
            unread.append(expression)
    return Asked(
        name,
        choice.get("deviceClassName", ""),
        int(choice.get("count") or 1),
        _whole_or_none(wanted_amounts.get(MEMORY)),
        _whole_or_none(wanted_amounts.get(CORES_PERMILLE)),
        tuple(wanted),
        tuple(unread),
    )


def _share(consumed: Object) -> Share:
    return Share(_whole(consumed.get(MEMORY)), _whole(consumed.get(CORES_PERMILLE)))


def _node_of(allocation: Object) -> str:
    """The node of an allocation, which is selected by name, because each pool has one node."""
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []:
        for rule in term.get("matchFields") or []:
            if rule.get("key") == "metadata.name" and rule.get("operator") == "In":
                return str((rule.get("values") or [""])[0])
    return ""


def _taint(taint: Object) -> str:
    value = taint.get("value")
    return f"{taint.get('key')}={value}" if value else str(taint.get("key"))


def _number(value: object) -> float:
    try:
        return 0.0 if value is None else float(parse_quantity(value))
    except QuantityError:
        return 0.0


def _whole(value: object) -> int:
    return _whole_or_none(value) or 0


def _whole_or_none(value: object) -> int | None:
    try:
        return None if value is None else parse_whole(value)
    except QuantityError:
        return None
