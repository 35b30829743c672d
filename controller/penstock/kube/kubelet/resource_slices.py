"""Publication of the node's devices in ResourceSlices, for allocation to claims."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from penstock.kube.kubelet.node_inventory import device_name
from penstock.kube.objects.api_client import SLICES, ApiError
from penstock.kube.objects.cache import Cache
from penstock.kube.objects.claim_defaults import MIB, usual_of
from penstock.kube.objects.names import CORES_PERMILLE, DRIVER, GROUP, MEMORY
from penstock.kube.objects.quantity import parse_quantity
from penstock.model.quantity import QuantityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kube.objects.api_client import Api, Object
    from penstock.kube.objects.node_devices import NodeDevice

MOST_IN_SLICE = 64  # the API's limit for devices with taints
UNHEALTHY = f"{GROUP}/unhealthy"
LONGEST_WAIT_S = 30.0
_MOST_TEXT = 64  # characters of an attribute


def device_entry(device: NodeDevice, *, taints: bool = True) -> Object:
    """The entry for a device in a slice. With `taints`, an unhealthy device gets a taint."""
    memory_mib = device.memory_bytes // MIB  # requests are in steps of 1 MiB
    entry: Object = {
        "name": device_name(device.uuid),
        "allowMultipleAllocations": True,
        "attributes": _attributes(device),
        "capacity": {
            MEMORY: _capacity(memory_mib, "Mi"),
            CORES_PERMILLE: _capacity(device.cores_permille, ""),
        },
    }
    if taints and not device.healthy:
        entry["taints"] = [{"key": UNHEALTHY, "effect": "NoSchedule"}]
    return entry


def slices_of(
    node: str, uid: str, devices: Sequence[NodeDevice], generation: int, *, taints: bool = True
) -> list[Object]:
    """All slices of the node's pool, owned by the Node with this `uid`.

    Without `taints`, which some servers do not support, unhealthy devices are omitted.
    """
    entries = [device_entry(one, taints=taints) for one in devices if taints or one.healthy]
    parts = [entries[at : at + MOST_IN_SLICE] for at in range(0, len(entries), MOST_IN_SLICE)]
    parts = parts or [[]]
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(parts)}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    return [
        {
            "apiVersion": SLICES.group_version,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{GROUP}-{number}", "ownerReferences": [owner]},
            "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": part},
        }
        for number, part in enumerate(parts)
    ]


def _capacity(amount: int, unit: str) -> Object:
    policy = {
        "default": f"{usual_of(amount)}{unit}",
        "validRange": {"min": f"1{unit}", "max": f"{amount}{unit}", "step": f"1{unit}"},
    }
    return {"value": f"{amount}{unit}", "requestPolicy": policy}


def _attributes(device: NodeDevice) -> Object:
    attributes: Object = {
        "uuid": {"string": device.uuid[:_MOST_TEXT]},
        "index": {"int": device.index},
        "productName": {"string": device.model[:_MOST_TEXT]},
        "simulated": {"bool": device.simulated},
    }
    if device.tflops is not None:
        attributes["tflops"] = {"int": int(device.tflops)}
    if device.profile:
        attributes["profile"] = {"string": device.profile[:_MOST_TEXT]}
    for name, text in (
        ("driverVersion", device.driver),
        ("cudaVersion", device.cuda),
        ("computeCapability", device.architecture),
    ):
        if version := semantic_version(text):
            attributes[name] = {"version": version}
    return attributes


def semantic_version(text: str) -> str:
    """A semantic version for CEL, without leading zeros: "580.65.06" becomes "580.65.6"."""
    numbers = text.split(".")
    if not text or len(numbers) > 3 or not all(n.isascii() and n.isdigit() for n in numbers):
        return ""
    return ".".join(str(int(number)) for number in [*numbers, "0", "0"][:3])


class Slices:
    """Keeps the node's slices equal to its devices, even if others change or delete them."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        where = f"spec.nodeName={node},spec.driver={DRIVER}"
        self.cache: Cache[Object] = Cache(api, SLICES, lambda one: one, fields=where)
        self.cache.changed.append(lambda *_: self._wake.set())
        self.problem: ApiError | None = None
        """Why the slices could not be written; None if they could."""
        self._wake = asyncio.Event()
        self._is_writing = False
        self._devices: tuple[NodeDevice, ...] | None = ()
        self._uid = ""
        self._taints = True  # false once a server turns out to drop taints

    def want(self, uid: str, devices: tuple[NodeDevice, ...] | None) -> None:
        """Sets the devices to publish, and the Node's uid.

        If `devices` is None, there are no slices at all, because this driver allocates no devices.
        """
        self._uid, self._devices = uid, devices
        self._wake.set()

    @property
    def is_settled(self) -> bool:
        """Whether the server has the wanted slices."""
        at_work = self._wake.is_set() or self._is_writing
        return bool(self._uid) and self.problem is None and not at_work

    async def run(self) -> None:
        """Writes slices that differ, until cancelled."""
        await self.cache.ready()
        wait_s = 0.0
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._uid:
                continue
            self._is_writing = True
            try:
                await self._write()
                self.problem, wait_s = None, 0.0
            except ApiError as error:
                self.problem = error
                wait_s = min(LONGEST_WAIT_S, max(0.5, wait_s * 2))
                self._wake.set()
                await asyncio.sleep(wait_s)
            finally:
                self._is_writing = False

    async def forget(self) -> None:
        """Deletes all slices of the node. Raises `ApiError`."""
        found, _ = await self._api.list(
            SLICES, fields=f"spec.nodeName={self._node},spec.driver={DRIVER}"
        )
        for one in found:
            await self._api.delete(SLICES, one["metadata"]["name"])

    async def _write(self) -> None:
        there = {name: one for (_, name), one in self.cache.objects.items()}
        wanted = self._wanted(1)
        if {name: _told(one) for name, one in there.items()} == {
            one["metadata"]["name"]: _told(one) for one in wanted
        } and len({one["spec"]["pool"]["generation"] for one in there.values()}) <= 1:
            return
        generation = 1 + max(
            (one["spec"]["pool"]["generation"] for one in there.values()), default=0
        )
        for one in self._wanted(generation):
            written = await self._put(one, there.pop(one["metadata"]["name"], None))
            self.cache.objects["", one["metadata"]["name"]] = written
            if self._taints and _taints(written) != _taints(one):
                self._taints = False
                self._wake.set()
        for name in there:
            await self._api.delete(SLICES, name)

    def _wanted(self, generation: int) -> list[Object]:
        if self._devices is None:
            return []
        return slices_of(self._node, self._uid, self._devices, generation, taints=self._taints)

    async def _put(self, one: Object, there: Object | None) -> Object:
        if there is None:
            return await self._api.create(SLICES, one)
        metadata = {**one["metadata"], "resourceVersion": there["metadata"]["resourceVersion"]}
        return await self._api.replace(SLICES, {**one, "metadata": metadata})


def _told(one: Object) -> str:
    """The content of a slice that a scheduler uses, without the generation, for comparison."""
    spec, owners = one["spec"], one["metadata"].get("ownerReferences") or []
    count = spec["pool"]["resourceSliceCount"]
    devices = [_plain(device) for device in spec.get("devices") or []]
    return json.dumps([count, [owner["uid"] for owner in owners], devices], sort_keys=True)


def _plain(part: Any) -> Any:  # noqa: ANN401 - JSON
    """Normalises quantities to numbers, and drops the time that the server adds to taints."""
    if isinstance(part, dict):
        return {
            key: _number(value)
            if key in {"value", "default", "min", "max", "step"}
            else _plain(value)
            for key, value in part.items()
            if key != "timeAdded"
        }
    return [_plain(one) for one in part] if isinstance(part, list) else part


def _number(text: object) -> str:
    try:
        return str(parse_quantity(text))
    except QuantityError:
        return str(text)


def _taints(one: Object) -> int:
    return sum(len(device.get("taints") or []) for device in one["spec"].get("devices") or [])
