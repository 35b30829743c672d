"""Pure functions that read the allocated shares of a node from the status of a ResourceClaim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.kube.kubelet.allocation import Allocation
from penstock.kube.objects.names import CORES_PERMILLE, DRIVER, GROUP, MEMORY
from penstock.kube.objects.opaque_parameters import parameters_for, said_by
from penstock.kube.objects.quantity import parse_whole
from penstock.model import PenstockError, QuantityError
from penstock.model.quantity import FULL_DEVICE_PERMILLE, MAX_MEMORY_BYTES
from penstock.model.share import NOTHING, Share
from penstock.policy.resolve import Settings, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kube.objects.api_client import Object

CLAIM = f"{GROUP}/claim"  # label of a tenant: the name of its claim
MOST_RESULTS = 32  # the API's own limit
_Word = TypeVar("_Word")


@dataclass(frozen=True)
class ClaimRef:
    """A kubelet's reference to a claim."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Part:
    """One result of the allocation: a share of one device."""

    request: str
    device: str  # the device's name in the ResourceSlice
    share_id: str | None
    share: Share


@dataclass(frozen=True)
class Granted:
    """The part of a claim's allocation on this node's devices."""

    ref: ClaimRef
    pod: str  # the Pod for which it was created, else the claim's own name; never changes
    parts: tuple[Part, ...]
    parameters: Settings
    by_administrators: Settings  # the parameters that its class or a policy sets

    def allocation(self, uuids: Mapping[str, str]) -> Allocation:
        """The tenant to grant, with all devices. `uuids` has the devices' UUIDs by name.

        Raises:
            PenstockError: a device is not on this node, or was allocated beyond its size.
        """
        shares: dict[str, Share] = {}
        for part in self.parts:
            uuid = uuids.get(part.device)
            if uuid is None:
                raise PenstockError(
                    f"{self.ref} cannot be prepared",
                    f"the node's agent knows no device {part.device!r}",
                    "restore the device, for example its driver, or delete the Pod and the claim",
                )
            shares[uuid] = shares.get(uuid, NOTHING) + part.share
        return Allocation(
            owner=self.ref.uid,
            namespace=self.ref.namespace,
            pod=self.pod,
            container="",
            shares=shares,
            bound_measured=self.by_administrators.measured is None,
            bound_grace=self.by_administrators.grace_ns is None,
            labels={CLAIM: self.ref.name},
            **resolve(self.parameters).terms(),
        )


def read_claim(one: Object, ref: ClaimRef, pool: str) -> Granted:
    """Reads a claim's allocation of devices in `pool`, which contains this node's devices.

    Raises:
        PenstockError: the claim is another one, not allocated, not reserved for a Pod, or has an
            allocation that this driver does not support.
    """  # noqa: DOC501 - `_refused` returns a PenstockError
    if one["metadata"].get("uid") != ref.uid:
        raise _refused(
            ref, "a newer claim has its name", "wait until the kubelet tries again with the new one"
        )
    status = one.get("status") or {}
    allocation = status.get("allocation")
    if not allocation:
        raise _refused(ref, "it is not allocated", "wait until a scheduler allocates it")
    if not any(
        user.get("resource") == "pods" and not user.get("apiGroup")
        for user in status.get("reservedFor") or []
    ):
        fix = "wait until the scheduler reserves it for its Pod"
        raise _refused(ref, "it is reserved for no Pod", fix)
    devices = allocation.get("devices") or {}
    results = [result for result in devices.get("results") or [] if result.get("driver") == DRIVER]
    if not results or len(results) > MOST_RESULTS:
        fix = "check the allocation in the claim's status"
        raise _refused(ref, f"it has {len(results)} devices of {DRIVER}", fix)
    configs = [config for config in devices.get("config") or [] if isinstance(config, dict)]
    parts = tuple(_part(ref, result, pool) for result in results)
    parameters = [parameters_for(part.request, configs) for part in parts]
    by_class = [said_by("FromClass", part.request, configs) for part in parts]
    if any(other != parameters[0] for other in parameters[1:]):
        raise _refused(
            ref, "its requests have different parameters, but a claim becomes one tenant",
            "use the same parameters for all requests, or create a claim for each request",
        )  # fmt: skip
    by_administrators = Settings(
        measured=_all_said([one.measured for one in by_class]),
        grace_ns=_all_said([one.grace_ns for one in by_class]),
    )
    return Granted(ref, _made_for(one), parts, parameters[0], by_administrators)


def _all_said(several: Sequence[_Word | None]) -> _Word | None:
    """The first value; None if any value is not set, so that no request gets a milder one."""
    return None if None in several else several[0]


def _part(ref: ClaimRef, result: Mapping[str, Any], pool: str) -> Part:
    if result.get("pool") != pool:
        raise _refused(
            ref, f"it has a device of {result.get('pool')}, not of {pool}",
            "delete the Pod, so that the scheduler places it on the node of its devices",
        )  # fmt: skip
    if result.get("adminAccess"):
        raise _refused(
            ref, "it requests admin access, which shares do not support",
            "leave adminAccess out; the agent's metrics report the usage of tenants",
        )  # fmt: skip
    consumed = result.get("consumedCapacity") or {}
    amounts = []
    for name, most in ((MEMORY, MAX_MEMORY_BYTES), (CORES_PERMILLE, FULL_DEVICE_PERMILLE)):
        text = consumed.get(name, consumed.get(f"{DRIVER}/{name}"))
        try:
            amount = parse_whole(text)
        except QuantityError as error:
            raise _refused(
                ref, f"its allocation does not say how much {name} it has: {error}",
                "update control plane and kubelets to Kubernetes 1.36 (DRAConsumableCapacity)",
            ) from error  # fmt: skip
        if not 0 < amount <= most:
            raise _refused(ref, f"{amount} is not a valid quantity of {name}", "delete the claim")
        amounts.append(amount)
    return Part(
        str(result.get("request", "")),
        str(result.get("device", "")),
        result.get("shareID"),
        Share(*amounts),
    )


def _made_for(one: Object) -> str:
    """The name of the Pod for which a template created the claim, else the claim's own name."""
    for owner in one["metadata"].get("ownerReferences") or []:
        if owner.get("kind") == "Pod" and owner.get("controller"):
            return str(owner["name"])
    return str(one["metadata"]["name"])


def _refused(ref: ClaimRef, why: str, fix: str) -> PenstockError:
    return PenstockError(f"{ref} cannot be prepared", why, fix)
