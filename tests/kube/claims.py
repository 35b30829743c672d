"""ResourceClaims for a test, Pods that have them, and what is seen from inside those."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from kubernetes import client

from penstock_shim.pages import read_quota

if TYPE_CHECKING:
    from tests.kube.pods import Pods

INSIDE = Path(__file__).parent / "inside"
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
        """One; what a Pod's spec says to have it."""
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
    """What the program in the Pod said; None: not yet."""
    if pods.read(name).status.phase not in {"Running", "Succeeded"}:
        return None
    lines = pods.log(name).splitlines()
    return json.loads(lines[0]) if lines else None


def quota_of(answer: dict, tmp_path: Path):
    file = tmp_path / f"page-{secrets.token_hex(4)}"
    file.write_bytes(base64.b64decode(answer["page"]))
    return read_quota(file)


def events(pods: Pods, name: str) -> dict[str, str]:
    """Of a Pod: messages by reason."""
    found = pods.core.list_namespaced_event(
        pods.namespace, field_selector=f"involvedObject.name={name}"
    ).items
    return {event.reason: event.message for event in found}


def running(pods: Pods) -> list:
    """Those that run; one that failed is told with what it said."""
    found = pods.core.list_namespaced_pod(pods.namespace).items
    for pod in found:
        if pod.status.phase == "Failed":
            name = pod.metadata.name
            why = [one.state.terminated for one in pod.status.container_statuses or []]
            said = pods.log(name) if why else ""
            raise AssertionError(f"{name} failed: {pod.status.message} {why} {said[-2000:]}")
    return [pod for pod in found if pod.status.phase == "Running"]
