"""Device plugin: serves a kubelet that only counts slots, and allocates vGPUs at container start.

Its devices are slots without a meaning. A kubelet picks slots for a container and calls Allocate
without naming the container. The response is the name of a CDI device that does not exist yet.
Before the container starts, the kubelet calls again (`container_start`), and the device is created.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from penstock.kube.kubelet.cdi_slots import new_slot
from penstock.model import PenstockError
from penstock.node.rpc.status import cut
from penstock_api.kubelet import deviceplugin_v1beta1_pb2 as pb
from penstock_api.kubelet import deviceplugin_v1beta1_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.kube.kubelet.container_start import ContainerStart
    from penstock.kube.kubelet.node_inventory import Inventory

# There are more slots than tenants on a device, and more than containers on a node, because a Pod
# must wait only for memory and cores, and never for slots. Only kubelets count slots, and they
# reject Pods for which no slot is left. The upper limit exists because kubelets write the names of
# all slots with every allocation.
SLOTS_A_DEVICE = 128
LEAST_SLOTS, MOST_SLOTS = 512, 4096
START_WITHIN_S = 27.0  # kubelets wait 30 s
MOST_ERROR_BYTES = 1500
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
Log = Any  # log(event, **fields)


def slot_ids(devices: int) -> list[str]:
    """The slot names of a node with this number of devices, which are the same after a restart."""
    count = min(MOST_SLOTS, max(LEAST_SLOTS, SLOTS_A_DEVICE * devices)) if devices else 0
    return [f"slot-{at:04}" for at in range(count)]


class Plugin(deviceplugin_v1beta1_pb2_grpc.DevicePluginServicer):
    """The plugin's gRPC service. Every call may be repeated, and any two may overlap."""

    def __init__(self, inventory: Inventory, starting: ContainerStart, log: Log) -> None:
        self._inventory = inventory
        self._starting = starting
        self._log = log
        self._watchers: set[asyncio.Event] = set()
        inventory.changed.append(self.tell)
        starting.ask_for_record = self.tell  # kubelets write a checkpoint when they get devices

    @property
    def is_watched(self) -> bool:
        """Whether a kubelet listens."""
        return bool(self._watchers)

    def tell(self) -> None:
        """Sends all devices again."""
        for watcher in self._watchers:
            watcher.set()

    async def GetDevicePluginOptions(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.Empty,  # noqa: ARG002 - it is empty
        context: object,  # noqa: ARG002 - of no use
    ) -> pb.DevicePluginOptions:
        """Requests a call before each start of a container."""
        return pb.DevicePluginOptions(pre_start_required=True)

    async def ListAndWatch(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.Empty,  # noqa: ARG002 - it is empty
        context: object,  # noqa: ARG002 - of no use
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Sends all slots, at once and after each change."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            await self._inventory.ready()
            while True:
                changed.clear()
                yield self._picture()
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    async def Allocate(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.AllocateRequest,
        context: object,  # noqa: ARG002 - of no use
    ) -> pb.AllocateResponse:
        """Returns the name of a CDI device for each container."""
        return pb.AllocateResponse(
            container_responses=[
                pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=new_slot())])
                for _ in request.container_requests
            ]
        )

    async def PreStartContainer(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[
            pb.PreStartContainerRequest, pb.PreStartContainerResponse
        ],
    ) -> pb.PreStartContainerResponse:
        """Grants the container's tenant, or fails with the reason, which the Pod's events show."""
        code = grpc.StatusCode.FAILED_PRECONDITION
        try:
            await asyncio.wait_for(self._starting.start(request.devices_ids), START_WITHIN_S)
            return pb.PreStartContainerResponse()
        except PenstockError as error:
            if error.reason in {"unavailable", "not-now"}:
                code = grpc.StatusCode.UNAVAILABLE
            why = str(error)
        except asyncio.TimeoutError:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            why = f"no vGPU within {START_WITHIN_S:g} s: the kubelet tries again"
        except Exception as error:  # noqa: BLE001 - the Pod's owner sees any error
            why = f"no vGPU: {type(error).__name__}: {error}"
        self._log("start failed", slots=sorted(request.devices_ids)[:8], why=why)
        await context.abort(code, " ".join(cut(why, MOST_ERROR_BYTES).split()))
        raise AssertionError("abort raises")

    def _picture(self) -> pb.ListAndWatchResponse:
        devices = self._inventory.devices
        health = HEALTHY if any(one.healthy for one in devices) else UNHEALTHY
        return pb.ListAndWatchResponse(
            devices=[pb.Device(ID=one, health=health) for one in slot_ids(len(devices))]
        )
