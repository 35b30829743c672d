"""Node inventory: the node's devices as its agent reports them, to be published to Kubernetes."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from typing import TYPE_CHECKING

from penstock.kube.objects.node_devices import MOST_DEVICES, MOST_WORD, NodeDevice
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.node.rpc import AgentClient
    from penstock_api.v1 import agent_pb2 as pb

LOOK_S = 2.0
POOL = "pool"  # the owner of a device that only a compute pool grants
# An agent that restarts responds within seconds. After this time its devices count as unhealthy,
# because an absent agent grants nothing.
AWAY_S = 30.0
AWAY = "the node's agent does not respond"


class Inventory:
    """The devices that the agent last reported. Functions in `changed` are called on a change."""

    def __init__(self, agent: AgentClient) -> None:
        self.devices: tuple[NodeDevice, ...] = ()
        self.changed: list[Callable[[], None]] = []
        self.problem: PenstockError | None = None
        """Why the agent does not respond at the moment; None if it responds."""
        self.driver_released = False
        """Whether the agent had released the driver at the last poll."""
        self._agent = agent
        self._seen = asyncio.Event()
        self._answered_s = time.monotonic()

    async def ready(self) -> None:
        """Returns once the agent has reported its devices."""
        await self._seen.wait()

    @property
    def is_ready(self) -> bool:
        """Whether the agent has reported its devices."""
        return self._seen.is_set()

    def uuids(self) -> dict[str, str]:
        """The devices' UUIDs by their names in ResourceSlices."""
        return {device_name(one.uuid): one.uuid for one in self.devices}

    def named(self) -> dict[str, NodeDevice]:
        """The devices by their names in ResourceSlices."""
        return {device_name(one.uuid): one for one in self.devices}

    async def run(self) -> None:
        """Polls the agent until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Polls the agent once."""
        try:
            node = await asyncio.to_thread(self._agent.node)
        except PenstockError as error:
            self.problem = error
            if time.monotonic() - self._answered_s < AWAY_S:
                return
            found = tuple(
                dataclasses.replace(one, healthy=False, reason=AWAY) for one in self.devices
            )
            is_first = False
        else:
            self.problem, self._answered_s = None, time.monotonic()
            self.driver_released = bool(node.driver_released)
            found = tuple(device_of(one) for one in node.devices[:MOST_DEVICES])
            is_first = not self._seen.is_set()
            self._seen.set()
        if is_first or found != self.devices:
            self.devices = found
            for tell in self.changed:
                tell()


def device_of(one: pb.Device) -> NodeDevice:
    """Converts an agent's device into the form that is published to Kubernetes.

    A device of a compute pool is published like an unhealthy one, so that nothing new is placed on
    it while Pods that were there before the pool go on.
    """
    is_pools = one.owner == POOL
    return NodeDevice(
        uuid=one.uuid,
        index=one.index,
        model=one.name[:MOST_WORD],
        memory_bytes=one.memory_bytes,
        tflops=one.tflops if one.HasField("tflops") and one.tflops > 0 else None,
        healthy=one.health in {"", "ok"} and not is_pools,
        reason=one.health_reason[:MOST_WORD] or ("of the compute pool" if is_pools else ""),
        simulated=one.simulated,
        driver=one.driver_version,
        cuda=one.cuda_version,
        architecture=one.compute_capability,
        profile=one.profile,
    )


def device_name(uuid: str) -> str:
    """A device's name in ResourceSlices, made from its UUID, which a reboot does not change."""
    return re.sub("[^a-z0-9-]", "-", uuid.lower()).strip("-")[:63].rstrip("-")
