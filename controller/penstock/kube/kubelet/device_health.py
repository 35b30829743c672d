"""Device health service for the kubelet, which shows device health in the status of Pods."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from penstock.kube.kubelet.node_inventory import device_name
from penstock_api.kubelet import dra_health_v1alpha1_pb2 as pb
from penstock_api.kubelet import dra_health_v1alpha1_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.kube.kubelet.node_inventory import Inventory

TELL_AGAIN_S = 10.0
FORGOTTEN_AFTER_S = 60  # after this time without news, the kubelet reports "unknown"


class Health(dra_health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    """The gRPC service for the health of devices."""

    def __init__(self, inventory: Inventory, pool: str) -> None:
        self._inventory = inventory
        self._pool = pool
        self._watchers: set[asyncio.Event] = set()
        self._is_over = False
        inventory.changed.append(self._tell)

    async def NodeWatchResources(  # noqa: N802 - kubelet's name for it
        self,
        request: pb.NodeWatchResourcesRequest,  # noqa: ARG002 - it is empty
        context: object,  # noqa: ARG002 - of no use
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        """Sends the health of all devices immediately, on each change, and periodically."""
        await self._inventory.ready()
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while not self._is_over:
                changed.clear()
                yield self._picture()
                try:
                    await asyncio.wait_for(changed.wait(), TELL_AGAIN_S)
                except asyncio.TimeoutError:
                    continue
        finally:
            self._watchers.discard(changed)

    def end(self) -> None:
        """Ends all streams, before the server is stopped."""
        self._is_over = True
        self._tell()

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    def _picture(self) -> pb.NodeWatchResourcesResponse:
        now = int(time.time())
        return pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(
                        pool_name=self._pool, device_name=device_name(one.uuid)
                    ),
                    health=pb.HEALTHY if one.healthy else pb.UNHEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=FORGOTTEN_AFTER_S,
                    message=one.reason,
                )
                for one in self._inventory.devices
            ]
        )
