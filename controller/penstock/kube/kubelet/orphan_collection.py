"""Orphan collection: ends tenants whose Pods are gone, if no kubelet will unprepare their claims.

Usually a kubelet unprepares a claim when its last container has ended. It does not if it has lost
its record of the claim, because its directory was wiped or the node came back under another name.
Then the claim's tenant is ended once no Pod needs it, the kubelet does not know its claim, and it
has no process.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from penstock.kube.kubelet.claim import CLAIM
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.node_pods import NodePods
    from penstock.kube.kubelet.pod_resources import Kubelet
    from penstock_api.v1 import agent_pb2 as pb

LOOK_S = 10.0
SETTLED_S = 60.0  # kubelets unprepare claims within seconds, but may have to restart first
Log = Any  # log(event, **fields)


class OrphanCollector:
    """Finds orphaned tenants, and ends them."""

    def __init__(
        self,
        tenants: Tenants,
        pods: NodePods,
        kubelet: Kubelet,
        *,
        under_way: Collection[str],
        log: Log,
        settled_s: float = SETTLED_S,
    ) -> None:
        """`under_way` contains the uids of claims for which a kubelet's call is in progress."""
        self._tenants = tenants
        self._pods = pods
        self._kubelet = kubelet
        self._under_way = under_way
        self._log = log
        self._settled_s = settled_s
        self._unwanted_s: dict[str, float] = {}  # by owner: when its tenant became unwanted

    async def run(self) -> None:
        """Checks periodically until cancelled."""
        await self._pods.cache.ready()
        while True:
            try:
                await self.look()
            except PenstockError as error:
                self._unwanted_s.clear()  # time without a successful check does not count
                self._log("not looked for leftovers", why=str(error))
            await asyncio.sleep(min(LOOK_S, self._settled_s / 2))

    async def look(self) -> None:
        """Checks once. Raises `PenstockError` if agent, API server or kubelet do not respond."""
        if self._pods.cache.problem is not None:
            raise self._pods.cache.problem
        owned = await self._tenants.owned()
        unwanted = {
            owner: tenant
            for owner, tenant in owned.items()
            if CLAIM in tenant.labels
            and owner not in self._under_way
            and all(pod.has_ended for pod in self._pods.of(tenant))
        }
        now = time.monotonic()
        self._unwanted_s = {owner: self._unwanted_s.get(owner, now) for owner in unwanted}
        due = [owner for owner, since in self._unwanted_s.items() if now - since >= self._settled_s]
        if not due:
            return
        known = await self._kubelet.claims()
        for owner in due:
            tenant = unwanted[owner]
            if (tenant.labels["namespace"], tenant.labels[CLAIM]) in known:
                del self._unwanted_s[owner]
            elif is_empty(tenant) and owner not in self._under_way:
                await self._tenants.revoke(tenant.name, reason="its Pods and containers are gone")
                self._log("removed a leftover", tenant=tenant.name, owner=owner)


def is_empty(tenant: pb.Tenant) -> bool:
    """Whether no process can use the tenant's share, as far as the agent sees.

    Occupied slots of the tenant's usage page do not count. If a process ends while no agent runs,
    its slot may stay occupied forever, unless the agent sees the machine's initial pid namespace.
    """
    return tenant.HasField("members") and not tenant.members
