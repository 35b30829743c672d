"""Placement sync: resizes tenants to the placements of their running Pods, up and down.

A tenant's accounted quantities show whether the tenant already has the placement's size. Within
them, an administrator of the node may have changed the quota, and this change is kept.

A Pod with a smaller placement also records the shares that its tenants may still have
(`penstock.io/held`). After shrinking the tenants, the node removes this annotation, on condition
that the Pod has not changed since: then no larger placement is on its way.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from penstock.kube.objects.api_client import PODS, ApiError
from penstock.kube.objects.names import HELD
from penstock.kube.objects.placement import read_placement
from penstock.model import PenstockError
from penstock.node.admission.scheduled_cap import accounted_label

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.node_pods import NodePod, NodePods
    from penstock.kube.objects.api_client import Api
    from penstock.model.share import Share
    from penstock_api.v1 import agent_pb2 as pb

Log = Any  # log(event, **fields)


class PlacementSync:
    """Syncs the tenants of one node. Calls of `look` must not overlap."""

    def __init__(
        self, api: Api, tenants: Tenants, pods: NodePods, *, under_way: Collection[str], log: Log
    ) -> None:
        """`under_way` contains the uids of Pods whose containers are being started."""
        self._api = api
        self._tenants = tenants
        self._pods = pods
        self._under_way = under_way
        self._log = log
        self._said: dict[str, str] = {}  # by name of a tenant: why it could not be resized

    def seen(self) -> dict[str, NodePod]:
        """The current Pods by uid, for `look`. Call this before listing tenants.

        A container that is not being started now already has its tenant, or will get it according
        to the same or a newer version of its Pod.
        """
        return {
            pod.uid: pod
            for pod in self._pods.cache.objects.values()
            if pod.placed and not pod.has_ended and pod.uid not in self._under_way
        }

    async def look(self, seen: Mapping[str, NodePod], owned: Mapping[str, pb.Tenant]) -> bool:
        """Syncs the tenants, given by owner, once; returns whether something is left to do."""
        behind = set()
        for owner, tenant in owned.items():
            container, uid = tenant.labels.get("container"), owner.partition("/")[0]
            pod = seen.get(uid)
            if not container or pod is None:
                continue
            try:
                for uuid, share in due(tenant.labels, pod.placed, container).items():
                    await self._tenants.account(tenant.name, uuid, share)
                    self._log("followed", tenant=tenant.name, device=uuid)
                self._said.pop(tenant.name, None)
            except PenstockError as error:  # another tenant has the room, or the agent is away
                behind.add(uid)
                if self._said.get(tenant.name) != str(error):
                    self._said[tenant.name] = str(error)
                    self._log("not followed", tenant=tenant.name, why=str(error))
        waiting = bool(behind)
        for pod in seen.values():
            if pod.held:
                waiting |= pod.uid in behind or not await self._has_followed(pod)
        return waiting

    async def _has_followed(self, pod: NodePod) -> bool:
        """Removes the held annotation, so that others can use the freed shares."""
        metadata = {"resourceVersion": pod.version, "uid": pod.uid, "annotations": {HELD: None}}
        try:
            await self._api.patch(PODS, pod.name, {"metadata": metadata}, pod.namespace, "status")
        except ApiError as error:
            if error.status not in {404, 409}:  # these mean that the Pod has changed or is gone
                self._log("not told what was given back", pod=pod.name, why=str(error))
            return error.status == 404
        return True


def due(labels: Mapping[str, str], placed: str, container: str) -> dict[str, Share]:
    """The shares, by device UUID, whose size in the placement differs from the tenant's labels."""
    return {
        uuid: share
        for uuid, share, (label, value) in _accounts(placed).get(container, ())
        if labels.get(label) != value
    }


@lru_cache(maxsize=4096)
def _accounts(placed: str) -> dict[str, list[tuple[str, Share, tuple[str, str]]]]:
    """The accounts by container; empty if the placement is malformed, as nothing starts then."""
    try:
        placement = read_placement(placed)
    except PenstockError:
        return {}
    return {
        container: [
            (uuid, share, accounted_label(uuid, share.memory_bytes, share.cores_permille))
            for uuid, share in shares.items()
        ]
        for container, shares in placement.items()
    }
