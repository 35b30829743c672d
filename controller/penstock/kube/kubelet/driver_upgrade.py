"""Driver upgrade: releases the node's GPU driver, so that its kernel modules can be unloaded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.kube.kubelet.node_annotation import Announcement
    from penstock.kube.kubelet.node_inventory import Inventory
    from penstock.node.rpc import AgentClient

LOOK_S = 1.0
# States of the GPU operator's upgrade controller. Before "pod-restart-required", Pods still run
# under their quotas. In that state the driver's Pod restarts, and begins by unloading the modules.
# A failed upgrade may have stopped at any step, so a released driver stays released, and a driver
# in use stays in use.
AWAY = "pod-restart-required"
FAILED = "upgrade-failed"
Log = Any  # log(event, **fields)


class DriverUpgrade:
    """Has the agent release the driver for an upgrade, and open it again afterwards."""

    def __init__(
        self, agent: AgentClient, announcement: Announcement, inventory: Inventory, log: Log
    ) -> None:
        self._agent = agent
        self._announcement = announcement
        self._inventory = inventory
        self._log = log
        self.problem: PenstockError | None = None
        """Why the agent did not release or open the driver; None if it did."""

    async def run(self) -> None:
        """Checks periodically until cancelled."""
        await self._announcement.cache.ready()
        await self._inventory.ready()
        while True:
            try:
                await self._look()
                self.problem = None
            except PenstockError as error:
                self.problem = error
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        node = self._announcement.node
        if node is None or node.driver_upgrade == FAILED:
            return
        wanted = node.driver_upgrade == AWAY
        if self._inventory.problem is not None or self._inventory.driver_released == wanted:
            return
        if wanted:
            reason = "the node's driver is being upgraded"
            await asyncio.to_thread(self._agent.release_driver, reason)
        else:
            await asyncio.to_thread(self._agent.reopen_driver)
        self._log("driver released" if wanted else "driver taken up", state=node.driver_upgrade)
        await self._inventory.look()
