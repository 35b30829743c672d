"""Container start: identifies a container by its slots, and grants its tenant.

The kubelet allocates slots to containers, and calls this process at every start of a container,
even after all processes have restarted. An init container's slots are reused for later containers,
so several containers of a Pod may have the same slots. Only one of them starts at a time, and the
runtime shows which one is next.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from penstock.kube.kubelet.allocation import OWNER, Allocation, tenant_name
from penstock.kube.kubelet.cdi_slots import name_of
from penstock.kube.kubelet.checkpoint import holders_of, read_record
from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.names import SCHEDULER
from penstock.kube.objects.placement import read_placement
from penstock.kube.objects.terms_annotations import read_terms
from penstock.model import PenstockError, listing
from penstock.model.share import Share
from penstock.policy.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.cdi_slots import Slots
    from penstock.kube.kubelet.checkpoint import Holder
    from penstock.kube.kubelet.container_runtime import Ran, Runtime
    from penstock.kube.kubelet.node_pods import NodePod, NodePods
    from penstock_api.v1 import agent_pb2 as pb

RECORD_WITHIN_S = 5.0  # wait for a newer checkpoint if the first one lacks the allocation
LOOK_S = 0.05
WAIT_WITHIN_S = 15.0  # kubelets wait 30 s
PASSING = frozenset({"not-enough-left", "not-now", "unavailable"})
AGAIN_S = 0.5
# Runtimes read a new spec when the kernel notifies them of it. If the kubelet requests the
# container before that, the container's creation fails with an event of the Pod, and is retried
# only ten seconds later.
HEARD_S = 0.05
Log = Any  # log(event, **fields)


def owner_of(pod_uid: str, container: str) -> str:
    """The owner of a tenant in device plugin mode."""
    return f"{pod_uid}/{container}"


class ContainerStart:
    """Identifies containers by their slots, and grants their tenants. Calls may overlap."""

    def __init__(
        self,
        folder: Path,
        pods: NodePods,
        tenants: Tenants,
        *,
        runtime: Runtime,
        slots: Slots,
        log: Log,
    ) -> None:
        """`folder` is the kubelet's directory with its plugins' sockets and its checkpoint."""
        self._folder = folder
        self._pods = pods
        self._tenants = tenants
        self._runtime = runtime
        self._slots = slots
        self._log = log
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.under_way: dict[str, int] = {}
        """Calls in progress by uid of the Pod, whose tenants may be newer than the cached Pod."""
        self.ask_for_record: Callable[[], None] = lambda: None
        """Makes the kubelet write its checkpoint."""
        self.end_unwanted: Callable[[], Awaitable[None]] = _nothing
        """Ends tenants that no Pod needs any more."""

    async def start(self, ids: Iterable[str]) -> str:
        """Grants the tenant of the container with these slots, and returns its name.

        Raises:
            PenstockError: the container has no vGPU, or cannot get it now.
        """
        holders = await self._holders(frozenset(ids))
        uid = holders[0].pod_uid
        self.under_way[uid] = self.under_way.get(uid, 0) + 1
        try:
            async with self._locks.setdefault(uid, asyncio.Lock()):
                return await self._patiently(uid, holders)
        finally:
            self.under_way[uid] -= 1
            if not self.under_way[uid]:
                del self.under_way[uid]

    async def _patiently(self, uid: str, holders: tuple[Holder, ...]) -> str:
        """Starts the container, and retries for a while if the problem may be temporary.

        The agent may be restarting, for example, or another Pod's last container may still hold
        the room that the scheduler considers free.

        Raises:
            PenstockError: the problem is not temporary, or lasts too long.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + WAIT_WITHIN_S
        while True:
            try:
                return await self._start(uid, holders)
            except PenstockError as error:
                if error.reason not in PASSING or clock() > end:
                    raise
            with contextlib.suppress(PenstockError):  # unneeded tenants cannot be determined now
                await self.end_unwanted()
            await asyncio.sleep(AGAIN_S)

    async def _start(self, uid: str, holders: tuple[Holder, ...]) -> str:
        owned = await self._tenants.owned()
        try:
            pod = await self._pods.find(uid)
        except ApiError:
            # The API server is away. If the container was started before, the agent has its grant.
            before = owned.get(owner_of(uid, holders[0].container))
            if len(holders) > 1 or before is None:
                raise
            return await self._give(allocation_before(before), holders[0])
        if pod is None:
            raise PenstockError(
                "the Pod is not on this node", f"the API server has no Pod here with uid {uid}",
                "do nothing if it was deleted; if it is a static Pod, it cannot have a vGPU",
            )  # fmt: skip
        holder = holders[0]
        if len(holders) > 1:
            holder = next_of(pod, holders, await self._runtime.ran(uid))
        allocation = allocation_of(pod, holder.container)
        over = {owner_of(uid, name) for name in not_beside(pod, holder.container)}
        for owner in over & owned.keys():
            reason = f"its container has ended, and container {holder.container} starts"
            await self._tenants.revoke(owned[owner].name, reason=reason)
        return await self._give(allocation, holder)

    async def _give(self, allocation: Allocation, holder: Holder) -> str:
        slot = name_of(holder.cdi_devices)
        if not slot:
            raise PenstockError(
                f"the devices of container {holder.container} come from another plugin",
                f"the kubelet's record has {listing(holder.cdi_devices) or 'no CDI device'} for it",
                "delete the Pod, so that it is created again",
            )
        cdi_devices = await self._tenants.grant(allocation)
        await asyncio.to_thread(self._slots.write, slot, cdi_devices)
        await asyncio.sleep(HEARD_S)
        self._log(
            "granted", namespace=allocation.namespace, pod=allocation.pod,
            container=holder.container, tenant=allocation.tenant, slot=slot,
        )  # fmt: skip
        return allocation.tenant

    async def _holders(self, ids: frozenset[str]) -> tuple[Holder, ...]:
        clock = asyncio.get_running_loop().time
        end = clock() + RECORD_WITHIN_S
        while True:
            found = holders_of(ids, await asyncio.to_thread(read_record, self._folder))
            if len({one.pod_uid for one in found}) == 1:
                return found
            if clock() > end:
                raise PenstockError(
                    "the starting container is unknown",
                    f"the kubelet's record has {len(found)} Pods with slots {listing(sorted(ids))}",
                    "wait until the kubelet tries again; if this persists, delete the Pod",
                    reason="unavailable",
                )  # fmt: skip
            self.ask_for_record()
            await asyncio.sleep(LOOK_S)


def next_of(pod: NodePod, holders: Iterable[Holder], ran: Mapping[str, Ran]) -> Holder:
    """The next container to start, among those with the same slots.

    `ran` contains the containers in the Pod's current sandbox. Kubelets start init containers one
    after the other, each when the previous one has succeeded.

    Raises:
        PenstockError: the Pod has none of these containers.
    """
    place = {name: at for at, name in enumerate(pod.order)}
    holders = [one for one in holders if one.container in place]
    if not holders:
        raise PenstockError(
            "the Pod's containers are not those that the kubelet knows",
            "the kubelet's record names none of them",
            "delete the Pod, so that it is created again",
        )  # fmt: skip
    holders.sort(key=lambda one: place[one.container])
    if any(name not in pod.inits and name not in pod.sidecars for name in ran):
        return holders[-1]  # the Pod's main containers have begun
    for one in holders[:-1]:
        done = ran.get(one.container)
        if one.container in pod.inits and not (done and done.has_succeeded):
            return one
    return holders[-1]


def not_beside(pod: NodePod, container: str) -> frozenset[str]:
    """The containers of a Pod that have ended by the time `container` starts."""
    place = {name: at for at, name in enumerate(pod.order)}
    at = place.get(container, len(place))
    if container in pod.inits:  # the Pod starts, perhaps again, so only earlier sidecars run
        return frozenset(
            name for name in pod.order
            if name != container and not (name in pod.sidecars and place[name] < at)
        )  # fmt: skip
    return frozenset(name for name in pod.inits if place[name] < at)


def allocation_of(pod: NodePod, container: str) -> Allocation:
    """The allocation of one container according to the Pod's placement.

    Raises:
        PenstockError: the placement has no share for the container, or cannot be read.
    """
    what = f"container {container} of Pod {pod.namespace}/{pod.name} has no device"
    if not pod.placed:
        raise PenstockError(
            what, f"the Pod was not placed by {SCHEDULER}",
            f"leave schedulerName out, or set it to {SCHEDULER}; nodeName must not be set",
        )  # fmt: skip
    shares = read_placement(pod.placed).get(container)
    if not shares:
        raise PenstockError(
            what,
            "the Pod's placement does not include this container",
            "delete the Pod, so that it is placed again",
        )
    settings = read_terms(pod.terms, what)
    return Allocation(
        owner=owner_of(pod.uid, container),
        namespace=pod.namespace,
        pod=pod.name,
        container=container,
        shares=shares,
        bound_measured=settings.measured is None,  # the webhook admits only the policy's values
        bound_grace=settings.grace_ns is None,
        **resolve(settings).terms(),
    )


def allocation_before(tenant: pb.Tenant) -> Allocation:
    """The allocation of an existing tenant, for which a grant returns the same tenant."""
    owner = tenant.labels[OWNER]
    one = Allocation(
        owner=owner,
        namespace=tenant.labels["namespace"],
        pod=tenant.labels["pod"],
        container=tenant.labels["container"],
        shares={
            share.device_uuid: Share(share.memory_bytes, share.cores_permille)
            for share in tenant.shares
        },
        policy=tenant.policy or None,
    )
    if one.tenant != tenant.name or tenant_name(one.pod, owner) != tenant.name:
        raise PenstockError(
            f"tenant {tenant.name} has the labels of another tenant", "it was created by hand",
            "revoke it",
        )  # fmt: skip
    return one


async def _nothing() -> None:
    """The default of `end_unwanted`, which ends no tenants."""
