"""Allocation: grants a Pod's vGPU as a tenant of the agent, in both allocation modes."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.objects.names import GROUP
from penstock.model import PenstockError
from penstock.model.names import MAX_TENANT_NAME
from penstock.model.terms import Terms
from penstock.node.admission.admit import Request
from penstock.node.admission.resize import Resize
from penstock.node.admission.scheduled_cap import accounted_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.model.share import Share
    from penstock.node.rpc import AgentClient
    from penstock_api.v1 import agent_pb2 as pb

OWNER = f"{GROUP}/owner"  # label of a tenant: the container or claim that owns it
_DIGITS = 12


@dataclass(frozen=True)
class Allocation(Terms):
    """The grant of one tenant, and its owner."""

    owner: str  # uid of the claim, or uid of the Pod and name of the container; never changes
    namespace: str
    pod: str  # the Pod's name, or the claim's name if several Pods share the claim
    container: str  # empty if the Pod's containers share it
    shares: Mapping[str, Share]  # by device UUID
    # Whether the agent's bounds for users apply, because no administrator has set the value.
    bound_measured: bool = True
    bound_grace: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        """The tenant's name, which is the Pod's name made unique by the owner."""
        return tenant_name(self.pod, self.owner)


def tenant_name(pod: str, owner: str) -> str:
    """The name of an owner's tenant, which is stable and unique."""
    digest = hashlib.sha256(owner.encode()).hexdigest()[:_DIGITS]
    return f"{pod[: MAX_TENANT_NAME - _DIGITS - 1].strip('.-')}.{digest}"


class Tenants:
    """The agent's tenants for Pods. Every method raises `PenstockError`."""

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent

    async def grant(self, one: Allocation) -> list[str]:
        """Grants a tenant, or finds it if it exists.

        Returns the CDI devices for its containers, beginning with ours.

        Raises:
            PenstockError: the agent refuses, or the owner's earlier tenant has other devices.
        """
        request = Request(
            command=(one.pod,),
            memory_bytes=[share.memory_bytes for share in one.shares.values()],
            cores_permille=[share.cores_permille for share in one.shares.values()],
            devices=list(one.shares),
            name=one.tenant,
            lifetime="until-revoked",
            bound_measured=one.bound_measured,
            bound_grace=one.bound_grace,
            container=True,
            request_id=one.owner,
            labels={
                **one.labels,
                **dict(
                    accounted_label(uuid, share.memory_bytes, share.cores_permille)
                    for uuid, share in one.shares.items()
                ),
                OWNER: one.owner,
                "namespace": one.namespace,
                "pod": one.pod,
                "container": one.container,
            },
            **one.terms(),
        )
        try:
            answer = await asyncio.to_thread(self._agent.grant, request)
        except PenstockError as error:
            if error.reason != "not-enough-left":
                raise
            raise PenstockError(  # advice for a Pod's user, who has no shell on this node
                error.what, error.why,
                "wait until one of them has ended, or delete the Pod to have it placed again",
                reason=error.reason,
            ) from error  # fmt: skip
        granted = {share.device_uuid for share in answer.tenant.shares}
        # Quantities may change while a tenant runs, but devices do not. So other devices belong to
        # an earlier placement.
        if granted != one.shares.keys():
            raise PenstockError(
                f"tenant {one.tenant} has other devices",
                "it belongs to an earlier placement of its owner",
                "wait until its containers end; then it is granted again", reason="not-now",
            )  # fmt: skip
        return list(answer.cdi_devices)

    async def account(self, name: str, uuid: str, share: Share) -> None:
        """Resizes a tenant's share of one of its devices, and accounts for the new size."""
        change = Resize(
            memory_bytes=share.memory_bytes,
            cores_permille=share.cores_permille,
            device=uuid,
            accounted=True,
        )
        await asyncio.to_thread(self._agent.resize, name, change)

    async def revoke(self, name: str, grace_ns: int = 0, reason: str = "") -> None:
        """Ends a tenant. A missing tenant is not an error."""
        try:
            await asyncio.to_thread(self._agent.revoke, name, grace_ns, reason)
        except PenstockError as error:
            if error.reason != "no-such-tenant":
                raise

    async def resume(self, name: str) -> None:
        """Resumes a tenant, however it was suspended. A missing tenant is not an error."""
        try:
            await asyncio.to_thread(self._agent.resume, name)
        except PenstockError as error:
            if error.reason != "no-such-tenant":
                raise

    async def owned(self) -> dict[str, pb.Tenant]:
        """All tenants for Pods, by owner."""
        tenants: Sequence[pb.Tenant] = await asyncio.to_thread(self._agent.tenants)
        return {one.labels[OWNER]: one for one in tenants if OWNER in one.labels}
