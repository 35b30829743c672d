"""Review context: looks up the claims, classes, policies and nodes that an object refers to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kube.objects.api_client import CLAIMS, NODES, Api, ApiError, Kind, Object, find
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.device_class import NO_CLASS, DeviceClass, read_class
from penstock.kube.objects.names import DEVICES, DRIVER
from penstock.kube.objects.node_devices import read_devices
from penstock.kube.objects.opaque_parameters import said_by
from penstock.kube.objects.privileges import RUNTIME_CLASSES
from penstock.kube.quota.policies import POLICIES, read_policy
from penstock.model import PenstockError, listing

if TYPE_CHECKING:
    from penstock.kube.objects.node_devices import NodeDevice
    from penstock.kube.quota.policies import Policy
    from penstock.policy.resolve import Settings

TEMPLATES = Kind("resource.k8s.io/v1", "resourceclaimtemplates")
CLASSES = Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False)
MOST_UNKNOWN = 8  # unknown device classes of a claim, each of which takes one request


@dataclass(frozen=True)
class Said:
    """The parameters of one request of a claim: those of its class, and the claim's own."""

    request: str
    by_class: Settings
    by_claim: Settings


@dataclass
class PodClaims:
    """A Pod's claims, under the names that the Pod uses for them."""

    ours: dict[str, Object] = field(default_factory=dict)  # specs of claims for our devices
    missing: list[str] = field(default_factory=list)  # neither the claim nor its template exists


class ReviewContext:
    """Looks up objects for reviews.

    Nodes, policies and device classes are cached, so that a review costs the API server one request
    per claim of a Pod. An unknown class is requested, as it may be new. If a cache of `classes` is
    passed, its owner runs it.

    Every method that requests an object raises `ApiError` if the API server does not respond, so
    that nothing is admitted unchecked.
    """

    def __init__(self, api: Api, classes: Cache[DeviceClass] | None = None) -> None:
        self._api = api
        self._nodes = Cache(api, NODES, _devices)
        self._policies = Cache(api, POLICIES, read_policy)
        self.classes = classes or Cache(api, CLASSES, read_class)
        self._runs_classes = classes is None

    async def run(self) -> None:
        """Follows the cluster until cancelled."""
        followed = [self._nodes.run(), self._policies.run()]
        await asyncio.gather(*followed, *([self.classes.run()] if self._runs_classes else []))

    def unready(self) -> str:
        """Why it cannot serve reviews yet; empty if it can."""
        for name, is_known in (
            ("policies", self._policies.is_ready or self._policies.is_unserved),
            ("device classes", self.classes.is_ready or self.classes.is_unserved),
        ):
            if not is_known:
                return f"{name} are not known yet"
        return ""

    def policies(self, namespace: str) -> list[Policy] | None:
        """The QuotaPolicies of a namespace; None if the cluster does not have this resource."""
        if self._policies.is_unserved:
            return None
        if not self._policies.is_ready:
            raise ApiError(
                "policies are not known yet", "the API server has not sent their list",
                "try the same request again in a moment", 0, "",
            )  # fmt: skip
        return [one for (where, _), one in self._policies.objects.items() if where == namespace]

    def devices_of(self, node: str) -> dict[str, NodeDevice]:
        """The devices that a node reports, by UUID; empty if they are not known."""
        seen = self._nodes.objects.get(("", node))
        return {one.uuid: one for one in seen or ()}

    async def runtime(self, name: str) -> Object | None:
        """The RuntimeClass; None if it does not exist, in which case the API server refuses."""
        return await find(self._api, RUNTIME_CLASSES, name)

    async def claims_of(self, pod: Object, namespace: str) -> PodClaims:
        """The Pod's claims for our devices, and those that do not exist yet."""
        found = PodClaims()
        for one in (pod.get("spec") or {}).get("resourceClaims") or []:
            name = str(one.get("name"))
            spec = await self._claim_spec(one, namespace)
            if spec is None:
                found.missing.append(name)
            elif await self.ours_of(spec):
                found.ours[name] = spec
        return found

    async def parameters(self, claim_spec: Object) -> list[Said]:
        """The parameters of each request of a claim. Raises `PenstockError` if any is invalid."""
        configs = [
            {**one, "source": "FromClaim"}
            for one in (claim_spec.get("devices") or {}).get("config") or []
        ]
        classes = await self.classes_of(claim_spec)
        found = []
        for one in asked_devices(claim_spec):
            request, of_class = str(one["reference"]), classes[str(one.get("deviceClassName"))]
            found.append(
                Said(
                    request,
                    by_class=said_by("FromClass", request, of_class.configs),
                    by_claim=said_by("FromClaim", request, configs),
                )
            )
        return found

    async def ours_of(self, claim_spec: Object) -> set[str]:
        """The device classes of a claim that allocate our devices.

        A class that names no driver counts as ours if no other driver has a class in the cluster.
        If another driver has one, the class does not count: whose devices it allocates is unknown
        until the claim is allocated, and then the node checks the result.
        """
        sure = {"ours"} if self.has_other_drivers else {"ours", "anybody's"}
        found = await self.classes_of(claim_spec)
        return {name for name, known in found.items() if known.whose in sure}

    async def classes_of(self, claim_spec: Object) -> dict[str, DeviceClass]:
        """The device classes that a claim names. A class that does not exist allocates nothing.

        Raises:
            PenstockError: too many of these classes do not exist, as each costs a request.
        """
        names = {str(one.get("deviceClassName")) for one in asked_devices(claim_spec)}
        found = {name: known for name in names if (known := self.classes.objects.get(("", name)))}
        unknown = sorted(names - found.keys())
        if len(unknown) > MOST_UNKNOWN:
            raise PenstockError(
                f"the claim names {len(unknown)} device classes that do not exist",
                listing(unknown), "use classes that `kubectl get deviceclasses` lists",
            )  # fmt: skip
        for name in unknown:
            found[name] = await self._class(name)
        return found

    async def _class(self, name: str) -> DeviceClass:
        if name == DRIVER:
            return DeviceClass("ours")
        found = await find(self._api, CLASSES, name)
        return NO_CLASS if found is None else read_class(found)

    @property
    def has_other_drivers(self) -> bool:
        """Whether the cluster has a device class of another driver."""
        return any(one.whose == "theirs" for one in self.classes.objects.values())

    def other_classes(self) -> set[str] | None:
        """The device classes of other drivers; None if not known yet."""
        if not self.classes.is_ready:
            return None
        return {name for (_, name), one in self.classes.objects.items() if one.whose == "theirs"}

    def largest(self) -> tuple[int, float] | None:
        """The largest memory and the largest TFLOPS of all devices; None if no device is known."""
        if not self._nodes.is_ready:
            return None
        found = [one for node in self._nodes.objects.values() for one in node]
        if not found:
            return None
        return max(one.memory_bytes for one in found), max(one.tflops or 0 for one in found)

    def most_devices(self) -> int | None:
        """The largest number of devices on one node; None if unknown, or no node has devices."""
        if not self._nodes.is_ready:
            return None
        return max((len(node) for node in self._nodes.objects.values()), default=0) or None

    async def _claim_spec(self, one: Object, namespace: str) -> Object | None:
        name, template = one.get("resourceClaimName"), one.get("resourceClaimTemplateName")
        if name:
            return ((await find(self._api, CLAIMS, name, namespace)) or {}).get("spec")
        if template:
            found = (await find(self._api, TEMPLATES, template, namespace)) or {}
            return (found.get("spec") or {}).get("spec")
        return None


def asked_devices(claim_spec: Object) -> list[Object]:
    """Every request of a claim, or each alternative of a request.

    Its `reference` is the name that configurations use: "main", or "main/small" for an alternative.
    """
    found: list[Object] = []
    for request in (claim_spec.get("devices") or {}).get("requests") or []:
        name = str(request.get("name"))
        exactly = request.get("exactly")
        if exactly:
            found.append({"name": name, **exactly, "reference": name})
            continue
        found += (
            {"name": name, **one, "reference": f"{name}/{one.get('name')}"}
            for one in request.get("firstAvailable") or []
        )
    return found


def _devices(node: Object) -> tuple[NodeDevice, ...] | None:
    """The devices that a Node reports, in either allocation mode."""
    try:
        return tuple(read_devices((node["metadata"].get("annotations") or {}).get(DEVICES, "[]")))
    except PenstockError:  # the agent on the node reports this
        return None
