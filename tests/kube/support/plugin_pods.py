"""Pods with shares by extended resources, and what is seen from inside those."""

from __future__ import annotations

import base64
import json
import secrets
from typing import TYPE_CHECKING, Any

from kubernetes.client import ApiException
from tests.kube.cluster import images
from tests.kube.support.nodes import CDI, STATE
from tests.kube.support.pods import INSIDE
from tests.kube.support.waiting import until

from penstock.kube.objects.names import DEVICES, PLACED, WAY
from penstock.kube.objects.node_devices import read_devices
from penstock.kube.objects.placement import write_placement
from penstock_shim.pages import read_quota

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.model.share import Share


LOOK = ("python3", str(INSIDE / "look.py"))


MIB, GIB = 1 << 20, 1 << 30


def slots(cluster, node: str) -> int:
    return int(cluster.core.read_node(node).status.allocatable.get("penstock.io/vgpu", 0))


def devices(cluster, node: str) -> list[str]:
    """The UUIDs of a node's devices, as schedulers read them."""
    metadata = cluster.core.read_node(node).metadata
    assert metadata.labels[WAY] == "extender"
    return [one.uuid for one in read_devices(metadata.annotations[DEVICES])]


def container(name: str, *command: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """A container with vGPUs that runs a program of ours."""
    limits = {"penstock.io/vgpu": str(count), "penstock.io/memory": "1Gi"} if count else {}
    return {
        "name": name,
        "image": images.DEBIAN,
        "command": list(command),
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "inside", "mountPath": str(INSIDE), "readOnly": True}],
        **more,
    }


def pod(
    name: str, *containers: dict[str, Any], inits: tuple[dict[str, Any], ...] = (), **spec: Any
) -> dict[str, Any]:
    """A Pod that the test itself places, in place of a scheduler."""
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "penstock-scheduler",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "initContainers": list(inits),
            "containers": list(containers),
            "volumes": [{"name": "inside", "hostPath": {"path": str(INSIDE)}}],
            **spec,
        },
    }


def bind(pods, name: str, node: str, placement: dict[str, dict[str, Share]] | None) -> None:
    """Binds a Pod as the extender does: node and devices in one update."""
    annotations = {PLACED: write_placement(placement)} if placement else {}
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "target": {"kind": "Node", "name": node},
    }
    pods.core.create_namespaced_pod_binding(name, pods.namespace, body, _preload_content=False)


def place(pods, body: dict[str, Any], node: str, placement: Any) -> None:
    """Makes the Pod and binds it."""
    pods.core.create_namespaced_pod(pods.namespace, body)
    bind(pods, body["metadata"]["name"], node, placement)


def said(pods, name: str, of: str = "main", *, previous: bool = False) -> dict[str, Any] | None:
    """What the program in a container printed; None: nothing yet.

    Raises:
        ApiException: something else stands in the log, which `until` waits out, or reports.
    """
    answer = pods.core.read_namespaced_pod_log(
        name, pods.namespace, container=of, previous=previous, _request_timeout=10,
        _preload_content=False,
    )  # fmt: skip
    text = answer.data.decode()
    if text and not text.startswith("{"):
        assert "Error" not in text, text
        raise ApiException(reason=f"the log begins with {text[:200]!r}")
    line, end, _ = text.partition("\n")
    return json.loads(line) if end else None  # a long line comes in pieces


def until_said(pods, name: str, of: str = "main", **more: Any) -> dict[str, Any]:
    return until(f"{of} of {name} says what it sees", lambda: said(pods, name, of, **more))


def check(answer: dict[str, Any], tmp_path: Path, shares: dict[str, Share]) -> None:
    """Asserts that a program saw exactly these shares by CUDA, NVML and its quota page."""
    file = tmp_path / f"page-{secrets.token_hex(4)}"
    file.write_bytes(base64.b64decode(answer["page"]))
    limits = {one.uuid: one for one in read_quota(file).limits.devices}
    seen = {one["uuid"]: one for one in answer["devices"]}
    assert seen.keys() == limits.keys() == shares.keys()
    for uuid, share in shares.items():
        assert (seen[uuid]["memory_bytes"], seen[uuid]["beyond"], seen[uuid]["within"]) == (
            share.memory_bytes, 2, 0,
        )  # fmt: skip
        assert limits[uuid].cores_permille == share.cores_permille
        assert limits[uuid].memory_bytes == share.memory_bytes
    assert sorted(answer["nvml_bytes"]) == sorted(one.memory_bytes for one in shares.values())


def events(pods, name: str) -> str:
    """The reasons and messages of all events of a Pod."""
    found = pods.core.list_namespaced_event(
        pods.namespace, field_selector=f"involvedObject.name={name}"
    ).items
    return "\n".join(f"{event.reason}: {event.message}" for event in found)


def nothing_left(nodes) -> None:
    """Returns when no node has a tenant, a CDI spec or a tenant's files."""
    for node in nodes.values():
        until(f"{node.name} has no tenant", lambda n=node: n.tenants() == {})
        until(f"{node.name} has no CDI spec", lambda n=node: n.files(CDI) == [])
        until("nor a file of one", lambda n=node: n.files(f"{STATE}/tenants") == [])


def taken_up(pods) -> int:
    """The number of Pods that their kubelets have admitted, with a slot."""
    found = pods.core.list_namespaced_pod(pods.namespace).items
    return len([one for one in found if one.status.start_time])


def running(pods) -> list[Any]:
    found = pods.core.list_namespaced_pod(pods.namespace).items
    for one in found:
        name = one.metadata.name
        assert one.status.phase != "Failed", (
            f"{one.status.message} {one.status.container_statuses} {events(pods, name)}"
        )
    return [one for one in found if one.status.phase == "Running"]
