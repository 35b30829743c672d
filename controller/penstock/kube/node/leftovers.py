"""Tenants whose Pods are gone and of whom no kubelet will say so.

Usually a kubelet unprepares a claim when its last container has ended. It does not where it has
forgotten the claim: its directory was wiped, or a node came back under another name. Such a tenant
goes when no Pod wants it, the kubelet does not know of it, and no process has its pages.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.kube.node.claim import CLAIM
from penstock.model import PenstockError
from penstock.node.mounted import mounted_pages, page_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.kube.node.allocation import Tenants
    from penstock.kube.node.kubelet import Kubelet
    from penstock.kube.node.pods import NodePods
    from penstock.node.mounted import PageId
    from penstock_api.v1 import agent_pb2 as pb

LOOK_S = 10.0
SETTLED_S = 60.0  # kubelets unprepare within seconds, and are given time to come back
Log = Any  # log(event, **fields)


class Leftovers:
    """Looks for them, and ends them."""

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
        """`under_way`: uids of claims that a kubelet is asking about at the moment."""
        self._tenants = tenants
        self._pods = pods
        self._kubelet = kubelet
        self._under_way = under_way
        self._log = log
        self._settled_s = settled_s
        self._unwanted_s: dict[str, float] = {}  # owner: since when

    async def run(self) -> None:
        """Looks until it is cancelled."""
        await self._pods.cache.ready()
        while True:
            try:
                await self.look()
            except PenstockError as error:
                self._unwanted_s.clear()  # time in which nobody could look does not count
                self._log("not looked for leftovers", why=str(error))
            await asyncio.sleep(min(LOOK_S, self._settled_s / 2))

    async def look(self) -> None:
        """Once. Raises `PenstockError`: agent, API server or kubelet cannot be asked."""
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
            elif not tenant.processes and not has_page(
                tenant, await asyncio.to_thread(pages_in_use)
            ):
                await self._tenants.revoke(tenant.name, reason="its Pods and containers are gone")
                self._log("removed a leftover", tenant=tenant.name, owner=owner)


def has_page(tenant: pb.Tenant, pages: frozenset[PageId]) -> bool:
    """Whether its usage page is one of those."""
    page = page_of(Path(tenant.directory, "usage"))
    return page is not None and page.identity in pages


def pages_in_use() -> frozenset[PageId]:
    """Usage pages of tenants with a process in a container. Looks at all processes of the node."""
    processes = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names alone are wanted
    mounted = (mounted_pages(pid) for pid in processes)
    return frozenset(page for one in mounted if one is not None for page in one.identities)
