"""Pure functions that describe a placed or finished Pod: headline, shares, obstacles to running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.controller.explain import Why, heard
from penstock.kube.objects.names import RUNNING
from penstock.model import format_cores, human_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.kube.controller.cluster_snapshot import Claim, Slice
    from penstock.kube.objects.api_client import Object

MOST_EVENTS = 5


@dataclass(frozen=True)
class NodeState:
    """The state of the Pod's node, as far as the user may read it."""

    name: str
    ready: bool
    said: str = ""  # message of the node's Ready condition


def node_state(one: Object) -> NodeState:
    """Reads a Node object."""
    conditions = {c["type"]: c for c in (one.get("status") or {}).get("conditions") or []}
    ready = conditions.get("Ready") or {}
    message = str(ready.get("message") or "").rstrip(". ")
    return NodeState(one["metadata"]["name"], ready.get("status") == "True", message)


def headline(pod: Object, node: NodeState | None) -> str:
    """The state in one line, such as "Running on node-1, suspended"."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    where = (pod.get("spec") or {}).get("nodeName") or ""
    parts = [status.get("phase", "Unknown") + (f" on {where}" if where else "")]
    if deleted := metadata.get("deletionTimestamp"):
        parts.append(f"being deleted, to have ended by {deleted}")
    if node is not None and not node.ready:
        parts.append(f"node {node.name} is not ready")
    if suspension(status):
        parts.append("suspended")
    return ", ".join(parts)


def suspension(status: Object) -> str:
    """The node's message about a suspended share of the Pod; empty if none is suspended."""
    for one in status.get("conditions") or []:
        if one.get("type") == RUNNING and one.get("status") == "False":
            return f"{one.get('reason')}: {one.get('message')}"
    return ""


def why_placed(pod: Object, node: NodeState | None, events: Iterable[Object]) -> Why:
    """Explains what prevents a placed Pod from running, given the events about it, oldest first."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    causes = [str(status["message"])] if status.get("message") else []
    if node is not None and not node.ready:
        causes.append(_of_lost_node(node, deleted="deletionTimestamp" in metadata))
    if suspended := suspension(status):
        causes.append(suspended)
    causes += _of_containers(status)
    ours, others = heard(events)
    return Why(tuple(causes), others[-MOST_EVENTS:], ours[-MOST_EVENTS:])


def _of_lost_node(node: NodeState, *, deleted: bool) -> str:
    said = f" ({node.said})" if node.said else ""
    if not deleted:
        return f"node {node.name} is not ready{said}: whether the Pod still runs is not known"
    return (
        f"node {node.name} is not ready{said}: the Pod ends when its kubelet responds again; if "
        f"the machine is off for good, delete the Node or taint it with "
        "node.kubernetes.io/out-of-service"
    )


def _of_containers(status: Object) -> list[str]:
    every = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    causes = []
    for one in every:
        state = one.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting:
            text = " ".join(str(waiting[k]) for k in ("reason", "message") if waiting.get(k))
            causes.append(f"container {one['name']} waits: {text}")
        elif ended and ended.get("exitCode"):
            text = str(ended.get("message") or ended.get("reason") or "")
            causes.append(f"container {one['name']} ended with {ended['exitCode']}: {text}".strip())
    return causes


def shares_by_claims(
    claims: Mapping[str, Claim | None], slices: Iterable[Slice]
) -> tuple[str, ...]:
    """Describes the shares that each claim holds; the keys are the Pod's names for its claims."""
    uuids = {
        (device.pool, device.name): device.attributes.get("uuid", "")
        for one in slices
        for device in one.devices
    }
    return tuple(
        f"claim {reference} has {human_memory(held.share.memory_bytes)} and "
        f"{format_cores(held.share.cores_permille)} % of "
        + (uuids.get((held.pool, held.device)) or f"{held.pool}/{held.device}")
        for reference, claim in claims.items()
        if claim is not None
        for held in claim.held or ()
    )
