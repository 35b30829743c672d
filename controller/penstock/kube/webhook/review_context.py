"""What an object refers to: asked of the API server, where it says more than the object does."""

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
    from penstock.kube.objects.opaque_parameters import Parameters
    from penstock.kube.quota.policies import Policy

TEMPLATES = Kind("resource.k8s.io/v1", "resourceclaimtemplates")
CLASSES = Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False)
MOST_UNKNOWN = 8  # device classes of a claim that are asked for one by one


@dataclass(frozen=True)
class Said:
    """Of one request of a claim: the parameters of its class, and its own."""

    request: str
    by_class: Parameters
    by_claim: Parameters


@dataclass
class PodClaims:
    """What is known of a Pod's claims, by the names that the Pod has for them."""

    ours: dict[str, Object] = field(default_factory=dict)  # specs of those on devices of ours
    missing: list[str] = field(default_factory=list)  # nobody has made them yet, or their template


class ReviewContext:
    """Methods raise `ApiError` where the API server does not answer: nothing is then admitted.

    Nodes, policies and device classes are followed, so that a request costs the API server a look
    at each claim of a Pod and no more; a class that is not known here is asked for, as it may be
    new. `classes` may be shared with others, who `run` it then.
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
        """Why it cannot be asked yet; empty: it can."""
        for name, is_known in (
            ("policies", self._policies.is_ready or self._policies.is_unserved),
            ("device classes", self.classes.is_ready or self.classes.is_unserved),
        ):
            if not is_known:
                return f"{name} are not known yet"
        return ""

    def policies(self, namespace: str) -> list[Policy] | None:
        """The QuotaPolicies of a namespace; None: this cluster has none."""
        if self._policies.is_unserved:
            return None
        if not self._policies.is_ready:
            raise ApiError(
                "policies are not known yet", "their list has not come from the API server",
                "the same request will do in a moment", 0, "",
            )  # fmt: skip
        return [one for (where, _), one in self._policies.objects.items() if where == namespace]

    def devices_of(self, node: str) -> dict[str, NodeDevice]:
        """Devices that a node says it has, by UUID; none where that is not known here."""
        seen = self._nodes.objects.get(("", node))
        return {one.uuid: one for one in seen or ()}

    async def runtime(self, name: str) -> Object | None:
        """That RuntimeClass; None: there is none, and the API server refuses such a Pod itself."""
        return await find(self._api, RUNTIME_CLASSES, name)

    async def claims_of(self, pod: Object, namespace: str) -> PodClaims:
        """What of the Pod's claims concerns us."""
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
        """What is said for each device that a claim may be given. Raises also for wrong ones."""
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
        """Those of a claim's device classes that give our devices.

        One that names no driver does so where no other driver has a class; elsewhere nobody knows
        before it is allocated, and the node looks at what was.
        """
        sure = {"ours"} if self.has_other_drivers else {"ours", "anybody's"}
        found = await self.classes_of(claim_spec)
        return {name for name, known in found.items() if known.whose in sure}

    async def classes_of(self, claim_spec: Object) -> dict[str, DeviceClass]:
        """Those that a claim names. What does not exist gives nothing.

        Raises `PenstockError` where too many of them do not: each has to be asked for.
        """
        names = {str(one.get("deviceClassName")) for one in asked_devices(claim_spec)}
        found = {name: known for name in names if (known := self.classes.objects.get(("", name)))}
        unknown = sorted(names - found.keys())
        if len(unknown) > MOST_UNKNOWN:
            raise PenstockError(
                f"the claim names {len(unknown)} device classes that do not exist",
                listing(unknown), "name those of `kubectl get deviceclasses`",
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
        """Whether a claim of this cluster may be for devices that are certainly not ours."""
        return any(one.whose == "theirs" for one in self.classes.objects.values())

    def other_classes(self) -> set[str] | None:
        """The device classes of other drivers; None: not known yet."""
        if not self.classes.is_ready:
            return None
        return {name for (_, name), one in self.classes.objects.items() if one.whose == "theirs"}

    def largest(self) -> tuple[int, float] | None:
        """Memory and TFLOPS of the cluster's largest devices; None: not known, or none."""
        if not self._nodes.is_ready:
            return None
        found = [one for node in self._nodes.objects.values() for one in node]
        if not found:
            return None
        return max(one.memory_bytes for one in found), max(one.tflops or 0 for one in found)

    def most_devices(self) -> int | None:
        """Of the node that has most of them; None: not known, or none has any."""
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
    """All that a claim asks for: each request, or each of its alternatives.

    `reference` is how configurations name it: "main", or "main/small" of an alternative.
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
    """Those that a Node says it has, in whichever way they are given out."""
    try:
        return tuple(read_devices((node["metadata"].get("annotations") or {}).get(DEVICES, "[]")))
    except PenstockError:  # its agent says that
        return None
