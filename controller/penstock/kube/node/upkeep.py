"""Tenants on the device plugin's way, kept true to their Pods.

Those of Pods that are gone end as soon as their containers have. A Pod object that is deleted in
the usual way goes when its containers have; one that is deleted by force goes before, so that
processes are looked for, too. Quotas move with placements: what was placed was accounted first.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from penstock.kube.node.leftovers import mounted_pages, page_of
from penstock.kube.node.starting import allocation_of
from penstock.model import PenstockError
from penstock.node.resize import Resize

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.kube.node.allocation import Tenants
    from penstock.kube.node.pods import NodePods
    from penstock.kube.node.slots import Slots
    from penstock.kube.placed import Share
    from penstock_api.v1 import agent_pb2 as pb

# An order of the agent's to a container that is just being made finds no process yet.
UNWANTED_S = 2.0
LOOK_S = 30.0
SOON_S = 0.5
Log = Any  # log(event, **fields)


class Upkeep:
    """Looks when Pods change, and now and then."""

    def __init__(
        self,
        tenants: Tenants,
        pods: NodePods,
        *,
        slots: Slots,
        under_way: Collection[str],
        log: Log,
    ) -> None:
        """`under_way`: uids of Pods of which containers are being started."""
        self._tenants = tenants
        self._pods = pods
        self._slots = slots
        self._under_way = under_way
        self._log = log
        self._unwanted_s: dict[str, float] = {}  # owner: since when
        self._unmoved: dict[str, str] = {}  # owner: why its quota is not as placed
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()
        pods.cache.changed.append(lambda *_: self._changed.set())

    async def run(self) -> None:
        """Looks until it is cancelled."""
        await self._pods.cache.ready()
        await asyncio.to_thread(self._slots.remove_leftovers)
        while True:
            self._changed.clear()
            try:
                await self.look()
            except PenstockError as error:
                self._unwanted_s.clear()  # time in which nobody could look does not count
                self._log("not looked after tenants", why=str(error))
            wait_s = UNWANTED_S / 2 if self._unwanted_s else LOOK_S
            try:
                await asyncio.wait_for(self._changed.wait(), wait_s)
            except asyncio.TimeoutError:
                continue
            await asyncio.sleep(SOON_S)  # many Pods change at once

    async def look(self) -> None:
        """Once. Raises `PenstockError`: the agent or the API server cannot be asked."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        if not self._pods.cache.is_ready:
            return
        if self._pods.cache.problem is not None:
            raise self._pods.cache.problem
        slots = await asyncio.to_thread(self._slots.tenants)  # before the tenants: some may be new
        owned = await self._tenants.owned()
        unwanted = {
            owner: tenant
            for owner, tenant in owned.items()
            if tenant.labels.get("container") and not self._is_wanted(owner.partition("/")[0])
        }
        now = time.monotonic()
        self._unwanted_s = {owner: self._unwanted_s.get(owner, now) for owner in unwanted}
        due = [owner for owner, since in self._unwanted_s.items() if now - since >= UNWANTED_S]
        mounted = await asyncio.to_thread(mounted_pages) if due else frozenset()
        for owner in due:
            tenant = unwanted[owner]
            if tenant.processes or page_of(tenant) in mounted:
                continue
            if self._is_wanted(owner.partition("/")[0]):
                continue  # meanwhile
            await self._tenants.revoke(tenant.name, reason="its Pod and containers are gone")
            del owned[owner], self._unwanted_s[owner]
            self._log("released", tenant=tenant.name, owner=owner)
        await self._move(owned)
        living = {one.name for one in owned.values()}
        for slot, tenant_of in slots.items():
            if tenant_of not in living:
                await asyncio.to_thread(self._slots.remove, slot)

    async def _move(self, owned: dict[str, pb.Tenant]) -> None:
        """Gives running tenants what their placement says by now."""
        for owner, tenant in owned.items():
            uid, _, container = owner.partition("/")
            pod = self._pods.named(uid)
            if pod is None or not container or pod.has_ended:
                continue
            try:
                for change in changes(tenant, allocation_of(pod, container).shares):
                    await self._tenants.resize(tenant.name, change)
                    self._log("moved", tenant=tenant.name, owner=owner, to=str(change))
                self._unmoved.pop(owner, None)
            except PenstockError as error:
                if self._unmoved.get(owner) != str(error):
                    self._log("not moved", tenant=tenant.name, owner=owner, why=str(error))
                self._unmoved[owner] = str(error)
        self._unmoved = {owner: why for owner, why in self._unmoved.items() if owner in owned}

    def _is_wanted(self, uid: str) -> bool:
        pod = self._pods.named(uid)
        return uid in self._under_way or (pod is not None and not pod.has_ended)


def changes(tenant: pb.Tenant, shares: Mapping[str, Share]) -> list[Resize]:
    """What makes the tenant's quotas those of `shares`; of its devices, which never change."""
    found = []
    for one in tenant.shares:
        wanted = shares.get(one.device_uuid)
        if wanted is None:
            continue
        memory = wanted.memory_bytes if wanted.memory_bytes != one.memory_bytes else None
        cores = wanted.cores_permille if wanted.cores_permille != one.cores_permille else None
        if memory is not None or cores is not None:
            found.append(Resize(memory, cores, device=one.device_uuid))
    return found
