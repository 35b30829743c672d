"""Claim checks before allocation: repeats the webhook's decisions with the current objects.

A Pod may have been created before its claim, or a claim before its Pod, and a device class, a
policy or a label may have changed since. Only now are all of them and the allocation known.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import PODS, ApiError, find
from penstock.kube.objects.names import MANAGED, POLICY, RUNNING
from penstock.kube.objects.privileges import RUNTIME_CLASSES, privileged, runtime_apart
from penstock.kube.quota.policies import POLICIES, holding, read_policy
from penstock.kube.quota.policy_bounds import bound_of
from penstock.model import (
    PenstockError,
    QuantityError,
    cores_from_tflops,
    format_cores,
    human_memory,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.kube.kubelet.claim import Granted
    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.node_devices import NodeDevice
    from penstock.kube.quota.policy_bounds import Bound


@dataclass(frozen=True)
class Scrutiny:
    """The checks of this node's claims.

    `unseen` contains namespaces whose Pods the webhook does not see. Only administrators use them,
    so nothing is refused there. If `unseen` is None, there is no webhook, and so no Pod has the
    webhook's readiness gate.
    """

    api: Api
    unseen: Collection[str] | None = None

    async def look(
        self, claim: Object, granted: Granted, devices: Mapping[str, NodeDevice]
    ) -> Granted:
        """The grant, made as strict as the policies of all Pods for which the claim is reserved.

        Args:
            claim: The claim's object.
            granted: The grant according to the claim's allocation.
            devices: This node's devices, by their names in slices.

        Raises:
            PenstockError: one of these Pods may not use the claim.
        """
        ref = granted.ref
        if self.unseen is not None and ref.namespace in self.unseen:
            return granted
        pods = await self._pods(claim, ref.namespace)
        if not pods:
            raise PenstockError(
                f"{ref} cannot be prepared", "none of the Pods for which it is reserved exists",
                "do nothing: they were deleted",
            )  # fmt: skip
        policies = [read_policy(one) for one in await self._policies(ref.namespace)]
        for pod in pods:
            metadata = pod["metadata"]
            what = f"{ref} cannot be prepared for Pod {metadata['name']}"
            for why, fix in self._missing(pod):
                raise PenstockError(what, why, fix)
            await self._check_privileges(pod, what)
            named = (metadata.get("annotations") or {}).get(POLICY, "")
            bound = bound_of(holding(policies, metadata.get("labels") or {}, named))
            if bound is None:
                continue
            for why, fix in _beyond(granted, bound, devices):
                raise PenstockError(what, why, fix)
            granted = _under(granted, bound)
        return granted

    async def _pods(self, claim: Object, namespace: str) -> list[Object]:
        """The existing Pods for which the claim is reserved."""
        users = [
            user
            for user in (claim.get("status") or {}).get("reservedFor") or []
            if user.get("resource") == "pods" and not user.get("apiGroup")
        ]
        found = await asyncio.gather(
            *(find(self.api, PODS, str(user["name"]), namespace) for user in users)
        )
        return [
            pod
            for user, pod in zip(users, found, strict=True)
            if pod is not None and pod["metadata"]["uid"] == user.get("uid")
        ]

    async def _policies(self, namespace: str) -> list[Object]:
        try:
            return (await self.api.list(POLICIES, namespace))[0]
        except ApiError as error:
            if error.status != 404:  # a cluster without policies responds with 404
                raise
            return []

    def _missing(self, pod: Object) -> Iterator[tuple[str, str]]:
        if self.unseen is None:
            return
        gates = (pod.get("spec") or {}).get("readinessGates") or []
        is_labelled = (pod["metadata"].get("labels") or {}).get(MANAGED) == "true"
        if not is_labelled or not any(one.get("conditionType") == RUNNING for one in gates):
            why = (
                f"it lacks the readiness gate {RUNNING} or the label {MANAGED}: it was created "
                "before its claim, or the claim's DeviceClass does not name the driver"
            )
            yield why, "create the Pod again, after its claim"

    async def _check_privileges(self, pod: Object, what: str) -> None:
        refusals = list(privileged(pod))
        if name := (pod.get("spec") or {}).get("runtimeClassName"):
            apart = runtime_apart(await find(self.api, RUNTIME_CLASSES, name))
            refusals += [apart] if apart else []
        for why, because, fix in refusals:
            raise PenstockError(what, f"{why}, and {because}", f"create the Pod again: {fix}")


def _beyond(
    granted: Granted, bound: Bound, devices: Mapping[str, NodeDevice]
) -> Iterator[tuple[str, str]]:
    """Yields each allocated quantity that exceeds `bound`, with advice."""
    for part in granted.parts:
        memory_bytes, cores = part.share.memory_bytes, part.share.cores_permille
        where = f"request {part.request} has"
        fix = "create the claim again with that or less, or have the policy changed"
        if bound.memory_bytes is not None and memory_bytes > bound.memory_bytes:
            most = human_memory(bound.memory_bytes)
            yield f"{where} {human_memory(memory_bytes)} of a device, {bound} allows {most}", fix
        device = devices.get(part.device)
        most_cores = _cores(bound, device.tflops if device else None)
        if most_cores is not None and cores > most_cores:
            most = format_cores(most_cores)
            yield f"{where} {format_cores(cores)} % of a device, {bound} allows {most} %", fix


def _cores(bound: Bound, tflops: float | None) -> int | None:
    if bound.tflops is None or not tflops:
        return bound.cores_permille
    try:
        return cores_from_tflops(bound.tflops, tflops)
    except QuantityError:  # more than the device has
        return None


def _under(granted: Granted, bound: Bound) -> Granted:
    return replace(
        granted,
        parameters=granted.parameters.bounded_by(bound.floor),
        by_administrators=granted.by_administrators.bounded_by(bound.floor),
    )
