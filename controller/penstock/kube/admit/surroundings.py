"""What an object refers to: asked of the API server, where it says more than the object does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.api import CLAIMS, NODES, Api, ApiError, Kind, Object
from penstock.kube.cache import Cache
from penstock.kube.control.policies import POLICIES, read_policy
from penstock.kube.device_class import whose
from penstock.kube.names import DRIVER
from penstock.kube.parameters import parameters_for
from penstock.kube.place.ledger import read_node

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.kube.control.policies import Policy
    from penstock.kube.parameters import Parameters
    from penstock.schedule.device import Device

TEMPLATES = Kind("resource.k8s.io/v1", "resourceclaimtemplates")
CLASSES = Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False)
RUNTIME_CLASSES = Kind("node.k8s.io/v1", "runtimeclasses", namespaced=False)
# No shared page and no futex crosses them: a quota would not reach the tenant.
APART = ("runsc", "gvisor", "kata")


class Surroundings:
    """Methods raise `ApiError` where the API server does not answer: nothing is then admitted."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._nodes = Cache(api, NODES, read_node)

    async def run(self) -> None:
        """Follows the cluster's nodes until cancelled."""
        await self._nodes.run()

    async def policies(self, namespace: str) -> list[Policy] | None:
        """The QuotaPolicies of a namespace; None: this cluster has none."""
        try:
            found, _ = await self._api.list(POLICIES, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return [read_policy(one) for one in found]

    def devices_of(self, node: str) -> dict[str, Device]:
        """Devices that a node says it has, by UUID; none where that is not known here."""
        seen = self._nodes.objects.get(("", node))
        return {one.uuid: one for one in seen.devices} if seen else {}

    async def apart(self, runtime_class: str) -> str:
        """The handler of that RuntimeClass if it keeps containers from the node's kernel."""
        try:
            found = await self._api.get(RUNTIME_CLASSES, runtime_class)
        except ApiError as error:
            if error.status == 404:  # the API server refuses such a Pod itself
                return ""
            raise
        handler = str(found.get("handler") or "")
        return handler if handler.lower().startswith(APART) else ""

    async def claims_of_ours(self, pod: Object, namespace: str) -> dict[str, Object]:
        """Specs of the Pod's claims on devices of ours, as the Pod calls them.

        Those that are not there yet are left out.
        """
        ours = {}
        for one in (pod.get("spec") or {}).get("resourceClaims") or []:
            spec = await self._claim_spec(one, namespace)
            if spec and await self.classes_of_ours(set(class_names(spec))):
                ours[str(one.get("name"))] = spec
        return ours

    async def parameters(self, claim_spec: Object) -> list[Parameters]:
        """What holds for each device that a claim may be given. Raises also for wrong ones."""
        configs = [
            {**one, "source": "FromClaim"}
            for one in (claim_spec.get("devices") or {}).get("config") or []
        ]
        found = []
        for one in asked_devices(claim_spec):
            of_class = await self._class_configs(str(one.get("deviceClassName") or ""))
            found.append(parameters_for(str(one["reference"]), [*of_class, *configs]))
        return found

    async def _class_configs(self, name: str) -> list[Object]:
        try:
            found = await self._api.get(CLASSES, name)
        except ApiError as error:
            if error.status != 404:
                raise
            return []
        configs = (found.get("spec") or {}).get("config") or []
        return [{**one, "source": "FromClass"} for one in configs]

    async def classes_of_ours(self, names: Collection[str]) -> set[str]:
        """Those DeviceClasses that choose devices of this driver."""
        ours = set()
        for name in names:
            if name == DRIVER:
                ours.add(name)
                continue
            try:
                found = await self._api.get(CLASSES, name)
            except ApiError as error:
                if error.status != 404:
                    raise
                continue
            if whose(found) == "ours":
                ours.add(name)
        return ours

    def largest(self) -> tuple[int, float] | None:
        """Memory and TFLOPS of the cluster's largest devices; None: not known, or none."""
        if not self._nodes.is_ready:
            return None
        found = [one for node in self._nodes.objects.values() for one in node.devices]
        if not found:
            return None
        return max(one.memory_bytes for one in found), max(one.tflops or 0 for one in found)

    def most_devices(self) -> int | None:
        """Of the node that has most of them; None: not known, or none has any."""
        if not self._nodes.is_ready:
            return None
        return max((len(node.devices) for node in self._nodes.objects.values()), default=0) or None

    async def _claim_spec(self, one: Object, namespace: str) -> Object | None:
        name, template = one.get("resourceClaimName"), one.get("resourceClaimTemplateName")
        try:
            if name:
                claim = await self._api.get(CLAIMS, name, namespace)
                return claim.get("spec")
            if template:
                found = await self._api.get(TEMPLATES, template, namespace)
                return (found.get("spec") or {}).get("spec")
        except ApiError as error:
            if error.status != 404:
                raise
        return None


def class_names(claim_spec: Object) -> list[str]:
    """The DeviceClasses that a claim asks."""
    return [str(one.get("deviceClassName") or "") for one in asked_devices(claim_spec)]


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
