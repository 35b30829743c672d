"""The node's devices, from its agent, for those who tell Kubernetes of them."""

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
# An agent that is started anew answers within seconds; one that is away for longer grants nothing.
AWAY_S = 30.0
AWAY = "the node's agent does not answer"


class Inventory:
    """The devices as the agent had them last; `changed` is called when that is another picture."""

    def __init__(self, agent: AgentClient) -> None:
        self.devices: tuple[NodeDevice, ...] = ()
        self.changed: list[Callable[[], None]] = []
        self.problem: PenstockError | None = None
        """Why the agent cannot be asked at the moment."""
        self.driver_released = False
        """Whether the agent had let go of the driver when it was asked last."""
        self._agent = agent
        self._seen = asyncio.Event()
        self._answered_s = time.monotonic()

    async def ready(self) -> None:
        """Returns once the agent has told its devices."""
        await self._seen.wait()

    @property
    def is_ready(self) -> bool:
        """Whether the agent has told its devices."""
        return self._seen.is_set()

    def uuids(self) -> dict[str, str]:
        """UUIDs by the names that ResourceSlices have."""
        return {device_name(one.uuid): one.uuid for one in self.devices}

    def named(self) -> dict[str, NodeDevice]:
        """The devices by those names."""
        return {device_name(one.uuid): one for one in self.devices}

    async def run(self) -> None:
        """Asks until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Asks once."""
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
    """A device as Kubernetes is told of it."""
    return NodeDevice(
        uuid=one.uuid,
        index=one.index,
        model=one.name[:MOST_WORD],
        memory_bytes=one.memory_bytes,
        tflops=one.tflops if one.HasField("tflops") and one.tflops > 0 else None,
        healthy=one.health in {"", "ok"},
        reason=one.health_reason[:MOST_WORD],
        simulated=one.simulated,
        driver=one.driver_version,
        cuda=one.cuda_version,
        architecture=one.compute_capability,
        profile=one.profile,
    )


def device_name(uuid: str) -> str:
    """As ResourceSlices name it: it follows the device wherever a reboot puts it."""
    return re.sub("[^a-z0-9-]", "-", uuid.lower()).strip("-")[:63].rstrip("-")
