"""Nodes and Pods as a ledger reads them, and a cluster that has nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.kube.objects.names import BY_EXTENDER, DEVICES, PLACED, RESOURCE_COUNT, WAY
from penstock.kube.objects.node_devices import NodeDevice, write_devices
from penstock.kube.objects.placement import write_placement
from penstock.kube.webhook.review_context import PodClaims
from penstock.model.share import Share

if TYPE_CHECKING:
    from penstock.kube.objects.api_client import Object


def node(
    name: str, way: str | None = BY_EXTENDER, text: str | None = None, slots: str = "256"
) -> Object:
    found = [NodeDevice(f"{name}-{at}", at, "H", 80 << 30) for at in range(2)]
    annotations = {DEVICES: write_devices(found) if text is None else text}
    labels = {WAY: way} if way else {}
    return {
        "metadata": {"name": name, "annotations": annotations, "labels": labels},
        "status": {"allocatable": {RESOURCE_COUNT: slots}},
    }


def pod(uid: str, where: str, cores: int, **more: Any) -> Object:
    placement = {"main": {f"{where}-0": Share(1 << 30, cores)}}
    return {
        "metadata": {"uid": uid, "annotations": {PLACED: write_placement(placement)}, **more},
        "spec": {"nodeName": where, "containers": [{"name": "main"}]},
        "status": {},
    }


class NothingAround:
    """A review context of a cluster in which nothing that an object refers to exists."""

    has_other_drivers = False

    async def claims_of(self, pod: Object, namespace: str) -> PodClaims:
        return PodClaims()

    async def parameters(self, claim_spec: Object) -> list[Any]:
        return []

    async def ours_of(self, claim_spec: Object) -> set[str]:
        return {"ours"}

    def policies(self, namespace: str) -> list[Any]:
        return []

    async def runtime(self, name: str) -> None:
        return None

    def most_devices(self) -> None:
        return None

    def largest(self) -> None:
        return None
