"""Nominations: how the status of a Pod records that room is being made for it.

The stock scheduler and others read `status.nominatedNodeName`. But a stock scheduler clears this
field when the Pod does not fit and the scheduler finds no victim itself. So a condition of the Pod
records the node too. A user who may only create Pods can write neither the field nor the condition,
and both survive when this process is killed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.kube.extender.ledger import FINISHED
from penstock.kube.objects.names import PREEMPTING
from penstock.kube.objects.resource_request import read_request
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object
    from penstock.kube.objects.cache import Key
    from penstock.scheduling.placement.pod_request import Request


@dataclass(frozen=True)
class Waiting:
    """A Pod that is not bound yet, for which a node was chosen."""

    uid: str
    pod: Key
    priority: int
    node: str  # the node where this extender makes room for it; empty if none
    nominated: str  # nominatedNodeName, which any scheduler may have set
    request: Request = field(hash=False)


def read_waiting(one: Object) -> Waiting | None:
    """Reads a Pod that waits for room; None if it is placed or ending, or has no nominated node."""
    metadata, spec, status = one["metadata"], one["spec"], one.get("status") or {}
    nominated, node = status.get("nominatedNodeName") or "", making_room_on(one)
    if (
        spec.get("nodeName")
        or not (nominated or node)
        or status.get("phase") in FINISHED
        or "deletionTimestamp" in metadata
    ):
        return None
    try:
        request = read_request(one)
    except PenstockError:
        return None
    if request is None:
        return None
    key = metadata.get("namespace", ""), metadata["name"]
    return Waiting(metadata["uid"], key, spec.get("priority") or 0, node, nominated, request)


def making_room_on(one: Object) -> str:
    """The node that the Pod's condition names; empty if there is none, or it is not True."""
    for condition in (one.get("status") or {}).get("conditions") or []:
        if condition.get("type") == PREEMPTING and condition.get("status") == "True":
            return str(condition.get("message") or "").partition(": ")[0]
    return ""


def write_nomination(uid: str, node: str, who_goes: str) -> Object:
    """A strategic patch that nominates a node; fails with 409 for a new Pod of the same name."""
    return _status(
        uid,
        {"nominatedNodeName": node},
        _condition("True", "RoomIsBeingMade", f"{node}: waits until {who_goes} free its devices"),
    )


def write_end(uid: str, why: str) -> Object:
    """A strategic patch that ends the nomination."""
    return _status(uid, {"nominatedNodeName": None}, _condition("False", "GivenUp", why))


def write_node_again(uid: str, node: str) -> Object:
    """A strategic patch that restores a nominatedNodeName which the scheduler cleared."""
    return _status(uid, {"nominatedNodeName": node})


def write_room_came(uid: str, node: str) -> Object:
    """A strategic patch that reports free room, which makes the scheduler retry the Pod."""
    return _status(uid, {}, _condition("False", "RoomCame", f"{node} has room for its shares"))


def was_refused(one: Object) -> bool:
    """Whether the scheduler has tried to place the Pod and failed."""
    return any(
        condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        for condition in (one.get("status") or {}).get("conditions") or []
    )


def write_touch(one: Object) -> Object:
    """A strategic patch of the probe time only, which makes the scheduler retry the Pod."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = "True" if making_room_on(one) else "False"
    touched = {"type": PREEMPTING, "status": status, "lastProbeTime": now}
    return _status(one["metadata"]["uid"], {}, touched)


def _status(uid: str, changed: Object, *conditions: Object) -> Object:
    if conditions:
        changed = {**changed, "conditions": list(conditions)}
    return {"metadata": {"uid": uid}, "status": changed}


def _condition(status: str, reason: str, message: str) -> Object:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": PREEMPTING,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }
