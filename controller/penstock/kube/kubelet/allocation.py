"""Allocation: grants a Pod's vGPU as a tenant of the agent, for both allocation modes."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.objects.names import GROUP
from penstock.model import PenstockError
from penstock.model.limits import DEFAULT_GRACE_NS, DEFAULT_STEP
from penstock.model.names import MAX_TENANT_NAME
from penstock.node.admission.admit import Request
from penstock.node.admission.resize import Resize
from penstock.node.admission.scheduled_cap import accounted_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kube.objects.placement import Share
    from penstock.model.limits import Mode, Step
    from penstock.node.rpc import AgentClient
    from penstock_api.v1 import agent_pb2 as pb

OWNER = f"{GROUP}/owner"  # label of a tenant: what it was granted for
_DIGITS = 12


@dataclass(frozen=True)
class Allocation:
    """The grant of one tenant, and its owner."""

    owner: str  # uid of the claim, or of the Pod with the container's name: never changes
    namespace: str
    pod: str  # the Pod's name; for a claim that several Pods share, the claim's
    container: str  # empty: the Pod's containers share it
    shares: Mapping[str, Share]  # by device UUID
    mode: Mode = "strict"
    policy: str = ""
    measured: Step = DEFAULT_STEP
    grace_ns: int = DEFAULT_GRACE_NS
    # True: no administrator set the value, so the agent's bounds for users apply.
    bound_measured: bool = True
    bound_grace: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        """The tenant's name: the Pod's, made unique by the owner."""
        return tenant_name(self.pod, self.owner)


def tenant_name(pod: str, owner: str) -> str:
    """The name of an owner's tenant: stable and unique."""
    digest = hashlib.sha256(owner.encode()).hexdigest()[:_DIGITS]
    return f"{pod[: MAX_TENANT_NAME - _DIGITS - 1].strip('.-')}.{digest}"


class Tenants:
    """The agent's tenants for Pods. Every method raises `PenstockError`."""

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent

    async def grant(self, one: Allocation) -> list[str]:
        """Grants a tenant, or finds it; returns the CDI devices for its containers, ours first.

        Raises:
            PenstockError: the agent refuses, or the owner's earlier tenant has other devices.
        """
        request = Request(
            command=(one.pod,),
            memory_bytes=[share.memory_bytes for share in one.shares.values()],
            cores_permille=[share.cores_permille for share in one.shares.values()],
            devices=list(one.shares),
            name=one.tenant,
            mode=one.mode,
            policy=one.policy or None,
            lifetime="until-revoked",
            measured=one.measured,
            grace_ns=one.grace_ns,
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
        )
        try:
            answer = await asyncio.to_thread(self._agent.grant, request)
        except PenstockError as error:
            if error.reason != "not-enough-left":
                raise
            raise PenstockError(  # advice for a Pod's user, who has no shell on this node
                error.what, error.why,
                "it starts when one of them has ended; delete the Pod to have it placed again",
                reason=error.reason,
            ) from error  # fmt: skip
        granted = {share.device_uuid for share in answer.tenant.shares}
        # Quantities may change while a tenant runs, but devices do not: these are of an earlier
        # placement.
        if granted != one.shares.keys():
            raise PenstockError(
                f"tenant {one.tenant} has other devices",
                "it belongs to an earlier placement of its owner",
                "it ends with its containers, and is then granted again", reason="not-now",
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
        """Ends a tenant. A missing one is not an error."""
        try:
            await asyncio.to_thread(self._agent.revoke, name, grace_ns, reason)
        except PenstockError as error:
            if error.reason != "no-such-tenant":
                raise

    async def resume(self, name: str) -> None:
        """Resumes a suspended tenant, whoever suspended it. A missing one is not an error."""
        try:
            await asyncio.to_thread(self._agent.resume, name)
        except PenstockError as error:
            if error.reason != "no-such-tenant":
                raise

    async def owned(self) -> dict[str, pb.Tenant]:
        """All tenants for Pods, by owner."""
        tenants: Sequence[pb.Tenant] = await asyncio.to_thread(self._agent.tenants)
        return {one.labels[OWNER]: one for one in tenants if OWNER in one.labels}
