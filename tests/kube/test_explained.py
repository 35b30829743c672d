"""The output of `penstock explain` for Pods, from objects of an API server."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from penstock.kube.controller.cluster_queries import _account
from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.node_devices import NodeDevice, write_devices

GIB = 1 << 30
UUID = "GPU-00000000-0000-5000-8000-000000000001"


class Objects:
    """An API server that has these objects, by plural, and refuses to list what it `forbids`."""

    def __init__(self, forbids: tuple[str, ...] = (), **objects: list[dict]) -> None:
        self.objects = objects
        self.forbids = forbids

    async def list(self, kind: Any, *_: object, **__: object) -> tuple[list[dict], str]:
        self._check(kind)
        return self.objects.get(kind.plural, []), "1"

    def now_s(self) -> float:
        return time.time()

    async def get(self, kind: Any, name: str, namespace: str = "") -> dict:
        self._check(kind)
        for one in self.objects.get(kind.plural, []):
            if one["metadata"]["name"] == name:
                return one
        raise ApiError("x", "not found", "", 404, "NotFound")

    def _check(self, kind: Any) -> None:
        if kind.plural in self.forbids:
            raise ApiError("x", "forbidden", "", 403, "Forbidden")


def explained(pod: dict, events: list[dict] | None = None, **objects: Any) -> Any:
    return asyncio.run(_account(Objects(**objects), pod, events or []))


def pod(*, node: str = "node-1", phase: str = "Running", spec: Any = None, **status: Any) -> dict:
    metadata = {"name": "ranker", "namespace": "team", "uid": "u"}
    where = {"nodeName": node} if node else {}
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "main"}], **where, **(spec or {})},
        "status": {"phase": phase, **status},
    }


def node(name: str = "node-1", *, ready: str = "True", devices: str = "", **labels: str) -> dict:
    room = {"cpu": "8", "memory": "64Gi", "pods": "100", "penstock.io/vgpu": "100"}
    said = {"type": "Ready", "status": ready, "message": "Kubelet stopped posting node status."}
    notes = {"penstock.io/devices": devices} if devices else {}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels, "annotations": notes},
        "spec": {},
        "status": {"conditions": [said], "allocatable": room, "capacity": room},
    }


def claim(name: str, memory: str, permille: int) -> dict:
    result = {
        "driver": "penstock.io", "pool": "node-1", "device": "gpu-0",
        "consumedCapacity": {"memory": memory, "coresPermille": str(permille)},
    }  # fmt: skip
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


SLICE = {
    "metadata": {"name": "s"},
    "spec": {
        "driver": "penstock.io", "nodeName": "node-1", "pool": {"name": "node-1", "generation": 1},
        "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": UUID}}}],
    },
}  # fmt: skip
BY_CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "small"}]}


def test_a_pod_by_claims_says_what_it_has_and_from_which_device():
    own = {"resourceclaims": [claim("small", "8Gi", 300)], "nodes": [node()]}
    found = explained(pod(spec=BY_CLAIM), resourceslices=[SLICE], **own)
    assert found.state == "Running on node-1"
    assert found.shares == (f"claim gpu has 8Gi and 30 % of {UUID}",)
    # and who may read the namespace alone has all but the device's name and the node's state
    found = explained(pod(spec=BY_CLAIM), forbids=("nodes", "resourceslices"), **own)
    assert found.shares == ("claim gpu has 8Gi and 30 % of node-1/gpu-0",)
    assert found.state == "Running on node-1"


def test_a_suspension_is_shown_in_the_headline_with_its_reason_below():
    said = {
        "type": "penstock.io/running", "status": "False", "reason": "VgpuSuspendedByOrder",
        "message": "tenant ranker.1 is suspended: for a while",
    }  # fmt: skip
    found = explained(pod(conditions=[said]), nodes=[node()])
    assert found.state == "Running on node-1, suspended"
    (cause,) = found.why.causes
    assert cause == "VgpuSuspendedByOrder: tenant ranker.1 is suspended: for a while"


def test_a_deleted_pod_on_a_node_that_is_not_ready_shows_both_causes_and_the_remedy():
    one = pod()
    one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    found = explained(one, nodes=[node(ready="Unknown")])
    assert found.state == (
        "Running on node-1, being deleted, to have ended by 2026-01-01T00:00:30Z, "
        "node node-1 is not ready"
    )
    (cause,) = found.why.causes
    assert "Kubelet stopped posting node status): the Pod ends when its kubelet responds" in cause
    (cause,) = explained(pod(), nodes=[node(ready="Unknown")]).why.causes
    assert cause.endswith("whether the Pod still runs is not known")


def test_penstocks_own_events_are_not_shown_as_reports_of_others():
    def event(reason: str, component: str) -> dict:
        return {
            "type": "Warning", "reason": reason, "message": "m", "reportingComponent": component,
        }  # fmt: skip

    events = [event("VgpuThrottled", "penstock.io/node"), event("BackOff", "kubelet")] * 2
    why = explained(pod(), events, nodes=[node()]).why
    assert (why.told, why.said) == (("VgpuThrottled: m",), ("BackOff: m",))
    # nor of a Pod that waits
    waiting = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}
    events = [event("VgpuStateUnknown", "penstock-control"), event("Odd", "somebody")]
    why = explained(pod(node="", phase="Pending", conditions=[waiting]), events).why
    assert (why.told, why.said) == (
        ("VgpuStateUnknown: m",), ("default-scheduler: 0/1 nodes", "Odd: m"),
    )  # fmt: skip


def test_preemption_is_mentioned_only_where_devices_alone_keep_a_pod_waiting():
    devices = write_devices([NodeDevice(UUID, 0, "NVIDIA H200", 80 * GIB)])
    there = node(devices=devices, **{"penstock.io/way": "extender"})

    def causes(memory: str, **spec: Any) -> str:
        limits = {"penstock.io/memory": memory, "penstock.io/cores-permille": "100"}
        container = {"name": "main", "resources": {"limits": limits, "requests": {}}}
        waits = pod(node="", phase="Pending", spec={"containers": [container], **spec})
        return "; ".join(explained(waits, nodes=[there]).why.causes)

    assert "no Pod with a share has a priority below 0" in causes("100Gi")
    for other in ({"nodeSelector": {"disk": "tape"}}, {"nodeSelector": {"penstock.io/way": "x"}}):
        assert "preemption" not in causes("100Gi", **other)
    assert json.dumps(causes("1Gi")).find("preemption") < 0, "it fits: nobody has to go"
