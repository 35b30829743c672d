"""What an object refers to: asked of the API server, where it says more than the object does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.api import CLAIMS, NODES, Api, ApiError, Kind, Object
from penstock.kube.cache import Cache
from penstock.kube.names import DRIVER, GROUP
from penstock.kube.place.ledger import read_node
from penstock.model import nearest

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.schedule.device import Device

TEMPLATES = Kind("resource.k8s.io/v1", "resourceclaimtemplates")
CLASSES = Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False)
RUNTIME_CLASSES = Kind("node.k8s.io/v1", "runtimeclasses", namespaced=False)
POLICIES = Kind(f"{GROUP}/v1alpha1", "quotapolicies")
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

    async def no_such_policy(self, namespace: str, name: str) -> str:
        """Why that QuotaPolicy cannot be meant; empty: it is there."""
        try:
            await self._api.get(POLICIES, name, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            return ""
        try:
            found, _ = await self._api.list(POLICIES, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return "this cluster has no QuotaPolicies"
        names = [one["metadata"]["name"] for one in found]
        near = nearest(name, names)
        return f"namespace {namespace} has no such QuotaPolicy" + (
            f", but {near}" if near else f"; it has {', '.join(names[:5]) or 'none'}"
        )

    async def policies(self, namespace: str) -> list[Object]:
        """The namespace's QuotaPolicies; none where the cluster does not know such."""
        try:
            found, _ = await self._api.list(POLICIES, namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return []
        return found

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

    async def claims_of_ours(self, pod: Object, namespace: str) -> list[str]:
        """The Pod's claims on devices of ours, as the Pod calls them. Unwritten ones are not."""
        ours = []
        for one in (pod.get("spec") or {}).get("resourceClaims") or []:
            spec = await self._claim_spec(one, namespace)
            if spec and await self.classes_of_ours(class_names(spec)):
                ours.append(str(one.get("name")))
        return ours

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
            text = str((found.get("spec") or {}).get("selectors") or "")
            if f'"{DRIVER}"' in text or f"'{DRIVER}'" in text:
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
    """All that a claim asks for: each request, or each of its alternatives."""
    found: list[Object] = []
    for request in (claim_spec.get("devices") or {}).get("requests") or []:
        exactly = request.get("exactly")
        several = [exactly] if exactly else request.get("firstAvailable") or []
        found += ({"name": request.get("name"), **one} for one in several)
    return found
