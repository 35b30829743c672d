"""Container start: identifies a container by its slots, and grants its tenant.

The kubelet calls at every start of a container, also after restarts of everything. It allocates the
slots. A Pod's init containers have theirs before the others, so that several containers of a Pod
may have the same slots. One of them starts at a time, and the runtime tells which one is next.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from penstock.kube.kubelet.allocation import OWNER, Allocation, tenant_name
from penstock.kube.kubelet.cdi_slots import name_of
from penstock.kube.kubelet.checkpoint import holders_of, read_record
from penstock.kube.objects.api_client import ApiError
from penstock.kube.objects.names import MODE, ON_EXCEED, SCHEDULER
from penstock.kube.objects.opaque_parameters import read_grace_ns
from penstock.kube.objects.placement import Share, read_placement
from penstock.model import PenstockError, listing
from penstock.model.limits import DEFAULT_GRACE_NS, MODES, STEPS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.cdi_slots import Slots
    from penstock.kube.kubelet.checkpoint import Holder
    from penstock.kube.kubelet.container_runtime import Ran, Runtime
    from penstock.kube.kubelet.node_pods import NodePod, NodePods
    from penstock_api.v1 import agent_pb2 as pb

RECORD_WITHIN_S = 5.0  # a snapshot that lacks an allocation is followed by one that has it
LOOK_S = 0.05
WAIT_WITHIN_S = 15.0  # kubelets wait 30 s
PASSING = frozenset({"not-enough-left", "not-now", "unavailable"})
AGAIN_S = 0.5
# Runtimes get a kernel notification of a new spec and read it then. If the kubelet requests the
# container before that, its creation fails with an event of the Pod, and is retried ten seconds
# later.
HEARD_S = 0.05
Log = Any  # log(event, **fields)
W = TypeVar("W", bound=str)


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
        """`folder`: the kubelet's directory with its plugins' sockets and its checkpoint."""
        self._folder = folder
        self._pods = pods
        self._tenants = tenants
        self._runtime = runtime
        self._slots = slots
        self._log = log
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.under_way: dict[str, int] = {}
        """Number of calls by uid of the Pod: its tenants may be newer than the cached Pod."""
        self.ask_for_record: Callable[[], None] = lambda: None
        """Makes the kubelet write its checkpoint."""
        self.end_unwanted: Callable[[], Awaitable[None]] = _nothing
        """Ends tenants that no Pod needs any more."""

    async def start(self, ids: Iterable[str]) -> str:
        """Grants the tenant of the container with these slots, and returns its name.

        Raises:
            PenstockError: the container has none, or cannot have it now.
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
        """Starts, and retries for a while when the problem may pass by itself.

        Examples are an agent that restarts, or room that the scheduler knows to be free while
        another Pod's last container still holds it.
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
            # It was started before, and the API server is away: the agent knows its grant.
            before = owned.get(owner_of(uid, holders[0].container))
            if len(holders) > 1 or before is None:
                raise
            return await self._give(allocation_before(before), holders[0])
        if pod is None:
            raise PenstockError(
                "the Pod is not this node's", f"the API server has none of uid {uid} here",
                "do nothing: it was deleted; a static Pod cannot have a vGPU",
            )  # fmt: skip
        holder = holders[0]
        if len(holders) > 1:
            holder = next_of(pod, holders, await self._runtime.ran(uid))
        allocation = allocation_of(pod, holder.container)
        over = {owner_of(uid, name) for name in not_beside(pod, holder.container)}
        for owner in over & owned.keys():
            reason = f"{holder.container} starts, its container has ended"
            await self._tenants.revoke(owned[owner].name, reason=reason)
        return await self._give(allocation, holder)

    async def _give(self, allocation: Allocation, holder: Holder) -> str:
        slot = name_of(holder.cdi_devices)
        if not slot:
            raise PenstockError(
                f"container {holder.container} was allocated by another plugin",
                f"the kubelet's record has {listing(holder.cdi_devices) or 'no CDI device'} of it",
                "delete the Pod, so that another one takes its place",
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
                    "the kubelet tries again; if this persists, delete the Pod",
                    reason="unavailable",
                )  # fmt: skip
            self.ask_for_record()
            await asyncio.sleep(LOOK_S)


def next_of(pod: NodePod, holders: Iterable[Holder], ran: Mapping[str, Ran]) -> Holder:
    """The next container to start, among those with the same slots.

    `ran`: the containers in the Pod's present sandbox. Kubelets start init containers one after the
    other, each when the one before has succeeded.
    """
    place = {name: at for at, name in enumerate(pod.order)}
    holders = [one for one in holders if one.container in place]
    if not holders:
        raise PenstockError(
            "the Pod has other containers than the kubelet knows",
            "the kubelet's record names none of them",
            "delete the Pod",
        )  # fmt: skip
    holders.sort(key=lambda one: place[one.container])
    if any(name not in pod.inits and name not in pod.sidecars for name in ran):
        return holders[-1]  # its main containers have begun
    for one in holders[:-1]:
        done = ran.get(one.container)
        if one.container in pod.inits and not (done and done.has_succeeded):
            return one
    return holders[-1]


def not_beside(pod: NodePod, container: str) -> frozenset[str]:
    """The Pod's containers that have ended when this one starts."""
    place = {name: at for at, name in enumerate(pod.order)}
    at = place.get(container, len(place))
    if container in pod.inits:  # the Pod starts, perhaps again: only earlier sidecars run
        return frozenset(
            name for name in pod.order
            if name != container and not (name in pod.sidecars and place[name] < at)
        )  # fmt: skip
    return frozenset(name for name in pod.inits if place[name] < at)


def allocation_of(pod: NodePod, container: str) -> Allocation:
    """The allocation of one container, by the Pod's placement.

    Raises:
        PenstockError: the placement has none, or cannot be read.
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
            "the Pod's placement does not have this container",
            "delete the Pod, so that it is placed again",
        )
    return Allocation(
        owner=owner_of(pod.uid, container),
        namespace=pod.namespace,
        pod=pod.name,
        container=container,
        shares=shares,
        mode=_word(what, MODE, pod.mode or "strict", MODES),
        policy=pod.policy,
        measured=_word(what, ON_EXCEED, pod.on_exceed or "terminate", STEPS),
        grace_ns=read_grace_ns(pod.grace) if pod.grace else DEFAULT_GRACE_NS,
        bound_measured=not pod.on_exceed,  # the webhook admits only the policy's own values
        bound_grace=not pod.grace,
    )


def _word(what: str, annotation: str, said: str, words: tuple[W, ...]) -> W:
    for one in words:
        if said == one:
            return one
    raise PenstockError(
        what, f"{annotation}: {said[:60]!r} is invalid", f"write one of {listing(words)}"
    )


def allocation_before(tenant: pb.Tenant) -> Allocation:
    """The allocation of an existing tenant: granting it again returns the same tenant."""
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
        policy=tenant.policy,
    )
    if one.tenant != tenant.name or tenant_name(one.pod, owner) != tenant.name:
        raise PenstockError(
            f"tenant {tenant.name} has labels of another one", "it was created by hand", "revoke it"
        )
    return one


async def _nothing() -> None:
    """The default of `end_unwanted`: ends no tenants."""
