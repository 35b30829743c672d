"""A vGPU of a Pod's as a tenant of the node's agent: the one path below both ways to ask for it."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.objects.names import GROUP
from penstock.model import PenstockError
from penstock.model.names import MAX_TENANT_NAME
from penstock.node.admission.admit import Request
from penstock.node.admission.resize import Resize
from penstock.node.admission.scheduled_cap import accounted_label
from penstock.node.tenants.grant import DEFAULT_GRACE_NS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kube.objects.placement import Share
    from penstock.node.rpc import AgentClient
    from penstock.node.tenants.grant import Mode, Step
    from penstock_api.v1 import agent_pb2 as pb

OWNER = f"{GROUP}/owner"  # label of a tenant: what it was granted for
_DIGITS = 12


@dataclass(frozen=True)
class Allocation:
    """What one tenant is granted, and for whom."""

    owner: str  # uid of the claim, or of the Pod with the container's name: the same for ever
    namespace: str
    pod: str  # name; of a claim that several Pods share: that of the claim
    container: str  # empty: containers of the Pod share it
    shares: Mapping[str, Share]  # by device UUID
    mode: Mode = "strict"
    policy: str = ""
    measured: Step = "terminate"
    grace_ns: int = DEFAULT_GRACE_NS
    # No administrator said these: the agent's bounds for users hold.
    bound_measured: bool = True
    bound_grace: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        """Its name: for people the Pod's, made unique by the owner."""
        return tenant_name(self.pod, self.owner)


def tenant_name(pod: str, owner: str) -> str:
    """The name of the tenant of that owner: always the same, and no other's."""
    digest = hashlib.sha256(owner.encode()).hexdigest()[:_DIGITS]
    return f"{pod[: MAX_TENANT_NAME - _DIGITS - 1].strip('.-')}.{digest}"


class Tenants:
    """Those that the agent has for Pods. Every method raises `PenstockError`."""

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent

    async def grant(self, one: Allocation) -> list[str]:
        """The CDI devices for its containers, ours first. Granted already: the same again.

        Raises:
            PenstockError: as the agent refuses, or the owner's tenant has other shares and goes.
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
            raise PenstockError(  # advised as a Pod's user can follow, not as who has a shell here
                error.what, error.why,
                "it starts when one of them has ended; delete the Pod to have it placed anew",
                reason=error.reason,
            ) from error  # fmt: skip
        granted = {share.device_uuid for share in answer.tenant.shares}
        # Figures move while a tenant runs, its devices do not: those are of an earlier placement.
        if granted != one.shares.keys():
            raise PenstockError(
                f"tenant {one.tenant} has other devices",
                "it is of an earlier placement of its owner",
                "it ends with its containers, and is asked for again then", reason="not-now",
            )  # fmt: skip
        return list(answer.cdi_devices)

    async def account(self, name: str, uuid: str, share: Share) -> None:
        """Gives a tenant that share of a device of its, less or more, and accounts for so much."""
        change = Resize(
            memory_bytes=share.memory_bytes,
            cores_permille=share.cores_permille,
            device=uuid,
            accounted=True,
        )
        await asyncio.to_thread(self._agent.resize, name, change)

    async def revoke(self, name: str, grace_ns: int = 0, reason: str = "") -> None:
        """Ends a tenant. One that is gone is no error."""
        try:
            await asyncio.to_thread(self._agent.revoke, name, grace_ns, reason)
        except PenstockError as error:
            if error.reason != "no-such-tenant":
                raise

    async def resume(self, name: str) -> None:
        """Lets a suspended tenant go on, whoever suspended it. One that is gone is no error."""
        try:
            await asyncio.to_thread(self._agent.resume, name)
        except PenstockError as error:
            if error.reason != "no-such-tenant":
                raise

    async def owned(self) -> dict[str, pb.Tenant]:
        """All that were granted for Pods, by owner."""
        tenants: Sequence[pb.Tenant] = await asyncio.to_thread(self._agent.tenants)
        return {one.labels[OWNER]: one for one in tenants if OWNER in one.labels}
