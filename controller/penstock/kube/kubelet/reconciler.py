"""Reconciler of device plugin mode: resizes tenants to their placements, and ends unused ones.

A tenant whose Pod is gone ends as soon as its containers have ended. A Pod object that is deleted
in the usual way disappears after its containers. If it is deleted by force, it disappears before
them, so the reconciler checks for processes as well.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from penstock.kube.kubelet.orphan_collection import is_empty
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.cdi_slots import Slots
    from penstock.kube.kubelet.node_pods import NodePods
    from penstock.kube.kubelet.placement_sync import PlacementSync

# A container that is just being created has no process yet, so its tenant must not end at once.
UNWANTED_S = 2.0
LOOK_S = 30.0
AGAIN_S = 2.0  # pause after a failed check, as the next change of a Pod may be far off
SOON_S = 0.5
Log = Any  # log(event, **fields)


class Reconciler:
    """Reconciles when Pods change, and periodically."""

    def __init__(
        self,
        tenants: Tenants,
        pods: NodePods,
        *,
        slots: Slots,
        following: PlacementSync,
        under_way: Collection[str],
        log: Log,
    ) -> None:
        """`under_way` contains the uids of Pods whose containers are being started."""
        self._tenants = tenants
        self._pods = pods
        self._slots = slots
        self._following = following
        self._is_behind = False  # whether a tenant does not have its Pod's placement yet
        self._under_way = under_way
        self._log = log
        self._unwanted_s: dict[str, float] = {}  # by owner: when its tenant became unwanted
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()
        pods.cache.changed.append(lambda *_: self._changed.set())

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._pods.cache.ready()
        await asyncio.to_thread(self._slots.remove_leftovers)
        said = False
        while True:
            self._changed.clear()
            try:
                await self.look()
                wait_s = UNWANTED_S / 2 if self._unwanted_s or self._is_behind else LOOK_S
                said = False
            except PenstockError as error:
                self._unwanted_s.clear()  # time without a successful check does not count
                if not said:
                    self._log("not looked after tenants", why=str(error))
                wait_s, said = AGAIN_S, True
            try:
                await asyncio.wait_for(self._changed.wait(), wait_s)
            except asyncio.TimeoutError:
                continue
            await asyncio.sleep(SOON_S)  # many Pods change at once

    async def look(self) -> None:
        """Reconciles once. Raises `PenstockError` if agent or API server do not respond."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        if not self._pods.cache.is_ready:
            return
        if self._pods.cache.problem is not None:
            raise self._pods.cache.problem
        # Slots and Pods are listed before tenants, because a tenant may be new.
        slots = await asyncio.to_thread(self._slots.tenants)
        seen = self._following.seen()
        owned = await self._tenants.owned()
        self._is_behind = await self._following.look(seen, owned)
        unwanted = {
            owner: tenant
            for owner, tenant in owned.items()
            if tenant.labels.get("container") and not self._is_wanted(owner.partition("/")[0])
        }
        now = time.monotonic()
        self._unwanted_s = {owner: self._unwanted_s.get(owner, now) for owner in unwanted}
        due = [owner for owner, since in self._unwanted_s.items() if now - since >= UNWANTED_S]
        for owner in due:
            tenant = unwanted[owner]
            if not is_empty(tenant) or self._is_wanted(owner.partition("/")[0]):
                continue  # the tenant is in use, or needed again since the check
            await self._tenants.revoke(tenant.name, reason="its Pod and containers are gone")
            del owned[owner], self._unwanted_s[owner]
            self._log("released", tenant=tenant.name, owner=owner)
        living = {one.name for one in owned.values()}
        for slot, tenant_of in slots.items():
            if tenant_of not in living:
                await asyncio.to_thread(self._slots.remove, slot)

    def _is_wanted(self, uid: str) -> bool:
        pod = self._pods.named(uid)
        return uid in self._under_way or (pod is not None and not pod.has_ended)
