"""ResourceClaims for a test, Pods that have them, and what is seen from inside those."""

from __future__ import annotations

import base64
import json
import secrets
from typing import TYPE_CHECKING

from kubernetes import client
from tests.kube.support.nodes import CDI, STATE
from tests.kube.support.pods import INSIDE, Pods
from tests.kube.support.waiting import until

from penstock_shim.pages import read_quota

if TYPE_CHECKING:
    from pathlib import Path

LOOK = INSIDE / "look.py"
CLASS = "penstock.io"
DRIVER = "penstock.io"
PARAMETERS = {"apiVersion": "penstock.io/v1alpha1", "kind": "VgpuParameters"}


class Claims:
    """ResourceClaims of one test's namespace."""

    def __init__(self, pods: Pods) -> None:
        self.pods = pods
        self.api = client.ResourceV1Api(pods.core.api_client)

    def make(
        self, name: str, *, config: dict | None = None, count: int = 1, **amounts: str
    ) -> dict:
        """Makes a claim; returns the entry of a Pod's spec that uses it."""
        spec = self.spec(config=config, count=count, **amounts)
        self.api.create_namespaced_resource_claim(
            self.pods.namespace, {"metadata": {"name": name}, "spec": spec}
        )
        return {"resourceClaimName": name}

    def spec(self, *, config: dict | None = None, count: int = 1, **amounts: str) -> dict:
        asked = {"deviceClassName": CLASS, "count": count}
        if amounts:
            asked["capacity"] = {"requests": amounts}
        devices: dict = {"requests": [{"name": "gpu", "exactly": asked}]}
        if config is not None:
            parameters = {**PARAMETERS, **config}
            devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
        return {"devices": devices}

    def read(self, name: str):
        return self.api.read_namespaced_resource_claim(name, self.pods.namespace)

    def results(self, name: str) -> list:
        return self.read(name).status.allocation.devices.results


def share(memory_mib: int, cores_permille: int) -> dict[str, str]:
    return {"memory": f"{memory_mib}Mi", "coresPermille": str(cores_permille)}


def look(
    pods: Pods, name: str, claim: dict, *words: str, node: str = "", restart: str = "Never"
) -> None:
    pods.start(
        name, "python3", LOOK, *words, mounts=[INSIDE], claims={"gpu": claim}, node=node,
        restart=restart,
    )  # fmt: skip


def seen(pods: Pods, name: str) -> dict | None:
    """What the program in the Pod printed; None: nothing yet."""
    if pods.read(name).status.phase not in {"Running", "Succeeded"}:
        return None
    lines = pods.log(name).splitlines()
    return json.loads(lines[0]) if lines else None


def quota_of(answer: dict, tmp_path: Path):
    file = tmp_path / f"page-{secrets.token_hex(4)}"
    file.write_bytes(base64.b64decode(answer["page"]))
    return read_quota(file)


def events(pods: Pods, name: str) -> dict[str, str]:
    """The messages of a Pod's events, by reason."""
    found = pods.core.list_namespaced_event(
        pods.namespace, field_selector=f"involvedObject.name={name}"
    ).items
    return {event.reason: event.message for event in found}


def running(pods: Pods) -> list:
    """The running Pods; fails with the log of a Pod that failed."""
    found = pods.core.list_namespaced_pod(pods.namespace).items
    for pod in found:
        if pod.status.phase == "Failed":
            name = pod.metadata.name
            why = [one.state.terminated for one in pod.status.container_statuses or []]
            said = pods.log(name) if why else ""
            raise AssertionError(f"{name} failed: {pod.status.message} {why} {said[-2000:]}")
    return [pod for pod in found if pod.status.phase == "Running"]


def pools(claims: Claims) -> dict[str, tuple[int, int]]:
    """The generation and the number of devices of each node's pool."""
    found = claims.api.list_resource_slice().items
    return {one.spec.node_name: (one.spec.pool.generation, len(one.spec.devices)) for one in found}


def nothing_left(nodes) -> None:
    """Returns when no node has a tenant, a CDI device or a tenant's files."""
    for node in nodes.values():
        until(f"{node.name} has no tenant", lambda n=node: n.tenants() == {})
        until(f"{node.name} has no CDI spec", lambda n=node: n.files(CDI) == [])
        until("nor a file of one", lambda n=node: n.files(f"{STATE}/tenants") == [])
