"""Explanation of why a Pod waits: every cause with its figures, and similar nodes in one sentence.

The scheduler reports how many nodes "cannot allocate all claims", but not what is short. This
module computes the free devices of each node from ResourceSlices and the allocations of all claims.
All functions here are pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.kube.controller.cluster_snapshot import ask_of
from penstock.kube.objects.events import OURS
from penstock.kube.objects.workloads import meets
from penstock.model import human_memory
from penstock.scheduling.placement.fit import why_not
from penstock.scheduling.placement.pod_request import Request
from penstock.scheduling.placement.reasons import Shortage, grouped, sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kube.controller.cluster_snapshot import Claim, Node, Usual
    from penstock.kube.objects.api_client import Object
    from penstock.kube.objects.workloads import Pod
    from penstock.scheduling.placement.device_state import Node as Devices
    from penstock.scheduling.placement.pod_request import Ask

MOST_SAID = 600  # characters quoted from another component's message
_NOT_READY = ("node.kubernetes.io/not-ready", "", "NoSchedule")
_TAINT_OF = {  # descriptions of taints that the cluster sets itself
    "node.kubernetes.io/unschedulable": "cordoned",
    "node.kubernetes.io/not-ready": "not ready",
    "node.kubernetes.io/unreachable": "not ready: its kubelet is unreachable",
    "node.kubernetes.io/memory-pressure": "short of memory of its own",
    "node.kubernetes.io/disk-pressure": "short of disk",
    "node.kubernetes.io/pid-pressure": "short of process ids",
}


@dataclass
class ClusterSnapshot:
    """The facts that decide where Pods fit."""

    nodes: Mapping[str, Node]
    devices: Mapping[str, Devices]  # for claims, by node
    claims: Mapping[tuple[str, str], Claim]
    classes: Iterable[str]  # all device classes
    ours: Iterable[str]  # device classes that allocate our devices
    taken: Mapping[str, tuple[float, float, int]] = field(default_factory=dict)
    """By node: the processors and bytes that its Pods request, and their number."""
    asked: Request | None = None
    """The Pod's request for extended resources, if any; `devices` are then those of that mode."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By node: why none of its devices can be allocated."""
    usual: Mapping[str, Usual] = field(default_factory=dict)
    """By node: the default quantities of a claim."""


@dataclass(frozen=True)
class Why:
    """The causes, most significant first, and messages of other components."""

    causes: tuple[str, ...]
    said: tuple[str, ...]
    told: tuple[str, ...] = ()
    """Warnings from events that Penstock itself wrote."""

    def __str__(self) -> str:
        return "; ".join(self.causes or self.told or self.said)


def explain(pod: Pod, world: ClusterSnapshot, events: Iterable[Object] = ()) -> Why:
    """Explains why a Pod is not placed, given the events about it, oldest first."""
    said, told = _said(pod, events)
    if pod.gates:
        held = ", ".join(pod.gates)
        return Why((f"it is held back by its scheduling gates: {held}",), said, told)
    causes = _of_claims(pod, world, events)
    if not causes:
        asked, notes = _asked(pod, world)
        reasons = _of_nodes(pod, world, asked)
        if reasons:
            causes.append(sentence(reasons.values()))
        elif not world.nodes:
            causes.append("the cluster has no nodes")
        if not pod.waiting:
            causes.insert(0, f"no scheduler named {pod.scheduler!r} has reported on it")
        causes += notes
    return Why(tuple(cause for cause in causes if cause), said, told)


def _of_claims(pod: Pod, world: ClusterSnapshot, events: Iterable[Object]) -> list[str]:
    """Problems of the Pod's claims that exclude every node."""
    causes = []
    for reference, name in pod.claims:
        claim = world.claims.get((pod.namespace, name))
        if not name:
            refused = [e for e in events if e.get("reason") == "FailedResourceClaimCreation"]
            why = f": {refused[-1].get('message', '')[:MOST_SAID]}" if refused else " yet"
            causes.append(f"its claim {reference!r} could not be created{why}")
        elif claim is None:
            causes.append(f"ResourceClaim {name!r} does not exist in namespace {pod.namespace}")
        elif claim.deleting:
            causes.append(f"ResourceClaim {name!r} is being deleted")
        else:
            missing = {r.device_class for r in claim.requests} - set(world.classes)
            causes += [
                f"DeviceClass {one!r}, which claim {name!r} requests, does not exist"
                for one in sorted(missing)
            ]
    return causes


@dataclass(frozen=True)
class _Wanted:
    """The devices that a Pod still needs, and the nodes to which its claims bind it."""

    request: Request | None
    bound: Mapping[str, str]  # by allocated claim: its node


def _asked(pod: Pod, world: ClusterSnapshot) -> tuple[_Wanted, list[str]]:
    if world.asked is not None:  # by extended resources, without claims
        return _Wanted(world.asked, {}), []
    asks: list[Ask] = []
    attributes: list[tuple[str, str]] = []
    notes: list[str] = []
    bound = {}
    ours = set(world.ours)
    for _, name in pod.claims:
        claim = world.claims[pod.namespace, name]
        if claim.node:
            bound[name] = claim.node
        for request in claim.requests:
            if request.device_class not in ours:
                continue
            asks.append(ask_of(claim, request))
            attributes += request.wanted
            notes += [
                f"claim {name!r} also selects devices by {text!r}, which only the scheduler "
                "evaluates"
                for text in request.unread
            ]
    whole = Request(tuple(asks), _model(attributes)) if asks else None
    return _Wanted(whole, bound), notes


def _model(attributes: Iterable[tuple[str, str]]) -> str:
    return next((v for name, v in attributes if name in {"model", "productName"}), "")


def _of_nodes(pod: Pod, world: ClusterSnapshot, wanted: _Wanted) -> dict[str, str]:
    """The first reason that excludes the Pod from each node."""
    shortages: dict[str, Shortage] = {}
    nearest: dict[str, float] = {}
    for name, node in world.nodes.items():
        text = _closed(pod, node, wanted)
        if text:
            shortages[name] = Shortage("said", text=text)
            continue
        if wanted.request is not None:
            if why := world.refused.get(name):
                shortages[name] = Shortage("said", text=why)
                continue
            devices = world.devices.get(name)
            if devices is None or not devices.devices:
                shortages[name] = Shortage("said", text="no devices of Penstock")
                continue
            if short := why_not(devices, _whole(wanted.request, world.usual.get(name))):
                shortages[name] = short
                continue
        short_of = _room(pod, node, world.taken.get(name, (0.0, 0.0, 0)))
        for what, by in short_of.items():
            nearest[what] = min(by, nearest.get(what, by))
        text = ", ".join(short_of) or "nothing is short there now: it will be retried"
        shortages[name] = Shortage("said", text=text)
    words = grouped(shortages)
    return {name: _with_figures(why, nearest) for name, why in words.items()}


def _whole(request: Request, usual: Usual | None) -> Request:
    """The request with a node's default quantities filled in; unchanged if `usual` is None."""
    if usual is None:
        return request
    memory_bytes, cores = usual
    asks = (
        replace(
            ask,
            memory_bytes=memory_bytes if ask.memory_bytes is None else ask.memory_bytes,
            cores_permille=cores if ask.cores_permille is None else ask.cores_permille,
        )
        for ask in request.asks
    )
    return replace(request, asks=tuple(asks))


def _closed(pod: Pod, node: Node, wanted: _Wanted) -> str:
    """Why the node excludes the Pod regardless of free resources; empty if it does not."""
    if node.cordoned:
        return "cordoned"
    tolerations = pod.spec.get("tolerations") or []
    if not node.ready and not _tolerates(tolerations, _NOT_READY):
        return "not ready"
    for taint in node.taints:
        if not _tolerates(tolerations, taint):
            key, value, effect = taint
            own = (
                f"tainted {key}{'=' + value if value else ''}:{effect}, which it does not tolerate"
            )
            return _TAINT_OF.get(key, own)
    if not _selected(pod.spec, node):
        return "not selected by the Pod's nodeSelector or affinity"
    for claim, where in wanted.bound.items():
        if where != node.name:
            return f"its claim {claim!r} is allocated on node {where}"
    return ""


def _tolerates(tolerations: Iterable[Object], taint: tuple[str, str, str]) -> bool:
    key, value, effect = taint
    for one in tolerations:
        if one.get("effect") not in {None, "", effect}:
            continue
        if one.get("operator") == "Exists":
            if one.get("key") in {None, "", key}:
                return True
        elif one.get("key") == key and (one.get("value") or "") == value:
            return True
    return False


def _selected(spec: Object, node: Node) -> bool:
    wanted = spec.get("nodeSelector") or {}
    if any(node.labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not affinity:
        return True
    name = {"metadata.name": node.name}
    return any(
        all(meets(rule, node.labels) for rule in term.get("matchExpressions") or [])
        and all(meets(rule, name) for rule in term.get("matchFields") or [])
        for term in affinity.get("nodeSelectorTerms") or []
    )


def open_nodes(pod: Pod, world: ClusterSnapshot) -> list[str]:
    """The nodes where only a lack of devices can exclude a Pod with extended resources."""
    wanted = _Wanted(world.asked, {})
    return [
        name
        for name, node in world.nodes.items()
        if not (
            _closed(pod, node, wanted)
            or world.refused.get(name)
            or _room(pod, node, world.taken.get(name, (0.0, 0.0, 0)))
        )
    ]


def _room(pod: Pod, node: Node, taken: tuple[float, float, int]) -> dict[str, float]:
    """The node's own resources that are short for the Pod, and by how much."""
    cpu, memory_bytes, count = taken
    short = {
        "cpu": pod.cpu_taken - (node.cpu - cpu),
        "host memory": pod.memory_taken_bytes - (node.memory_bytes - memory_bytes),
        "Pods": count + 1 - node.pods,
    }
    # A shortage matters only for a Pod that requests the resource.
    asks = {"cpu": pod.cpu_taken, "host memory": pod.memory_taken_bytes, "Pods": 1}
    return {what: by for what, by in short.items() if by > 1e-9 and asks[what]}


def _with_figures(text: str, nearest: Mapping[str, float]) -> str:
    parts = text.split(", ")
    if not all(part in nearest for part in parts):
        return text
    said = {
        "cpu": f"cpu short by {nearest.get('cpu', 0):.3g} at best",
        "host memory": f"host memory short by {human_memory(int(nearest.get('host memory', 0)))} "
        "at best",
        "Pods": "as many Pods as it may run",
    }
    return ", ".join(said[part] for part in parts)


def _said(pod: Pod, events: Iterable[Object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Messages of the scheduler and other components, and of Penstock, without duplicates."""
    ours, others = heard(
        event for event in events if event.get("reason") not in {"FailedScheduling", "WhyPending"}
    )
    if pod.waiting:
        short = re.sub(r"\. preemption: .*", "", pod.waiting, flags=re.DOTALL)
        others = (f"{pod.scheduler}: {short[:MOST_SAID]}", *others)
    return others, ours


def heard(events: Iterable[Object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The warnings of Penstock among events, and those of others, without duplicates."""
    found: tuple[dict[str, None], dict[str, None]] = ({}, {})
    for event in events:
        if event.get("type") == "Warning":
            text = f"{event.get('reason')}: {str(event.get('message'))[:MOST_SAID]}"
            found[not _is_ours(event)].setdefault(text)
    return tuple(found[0]), tuple(found[1])


def _is_ours(event: Object) -> bool:
    component = event.get("reportingComponent") or (event.get("source") or {}).get("component")
    return component in OURS
