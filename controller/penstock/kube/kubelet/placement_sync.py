"""Tenants follow the placements of their Pods while these run, up and down.

What a tenant was accounted for says whether it has followed: below that its quota may have been
moved on the node, and stays so. A Pod whose placement became smaller says with it what its tenants
may still have (`penstock.io/held`). That is taken away over the version of the Pod that was
followed: as long as nobody has written the Pod since, nothing larger is on its way here.
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
    from penstock.kube.objects.placement import Share
    from penstock_api.v1 import agent_pb2 as pb

Log = Any  # log(event, **fields)


class PlacementSync:
    """Of one node. Looks when it is told to; two looks do not overlap."""

    def __init__(
        self, api: Api, tenants: Tenants, pods: NodePods, *, under_way: Collection[str], log: Log
    ) -> None:
        """`under_way`: uids of Pods of which containers are being started."""
        self._api = api
        self._tenants = tenants
        self._pods = pods
        self._under_way = under_way
        self._log = log
        self._said: dict[str, str] = {}  # why a tenant does not follow, by its name

    def seen(self) -> dict[str, NodePod]:
        """Pods as they are now, by uid, for `look`. To be taken before tenants are listed.

        A container whose start is not under way now has its tenant, or will have it by what is
        known of its Pod then: this or newer.
        """
        return {
            pod.uid: pod
            for pod in self._pods.cache.objects.values()
            if pod.placed and not pod.has_ended and pod.uid not in self._under_way
        }

    async def look(self, seen: Mapping[str, NodePod], owned: Mapping[str, pb.Tenant]) -> bool:
        """Once, with the tenants by owner; whether something is left to do."""
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
            except PenstockError as error:  # room that another one still has, or no agent
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
        """Says so of the Pod, for others to have what it gave back."""
        metadata = {"resourceVersion": pod.version, "uid": pod.uid, "annotations": {HELD: None}}
        try:
            await self._api.patch(PODS, pod.name, {"metadata": metadata}, pod.namespace, "status")
        except ApiError as error:
            if error.status not in {404, 409}:  # else it is another by now: looked at again
                self._log("not told what was given back", pod=pod.name, why=str(error))
            return error.status == 404
        return True


def due(labels: Mapping[str, str], placed: str, container: str) -> dict[str, Share]:
    """What a tenant is to be accounted for and is not, by device UUID. Devices do not change."""
    return {
        uuid: share
        for uuid, share, (label, value) in _accounts(placed).get(container, ())
        if labels.get(label) != value
    }


@lru_cache(maxsize=4096)
def _accounts(placed: str) -> dict[str, list[tuple[str, Share, tuple[str, str]]]]:
    """By container; none of a placement that cannot be read: its containers do not start."""
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
