"""All of a node that is served by the DRA driver, joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.kube.api import NODES
from penstock.kube.names import BY_CLAIMS
from penstock.kube.node.announcement import read_node_said
from penstock.kube.node.driver import Driver
from penstock.kube.node.health import Health
from penstock.kube.node.kubelet import Kubelet
from penstock.kube.node.leftovers import Leftovers
from penstock.kube.node.registration import Sockets
from penstock.kube.node.slices import Slices
from penstock.kube.node.unresizable import Unresizable

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine
    from pathlib import Path

    from penstock.kube.api import Api
    from penstock.kube.node.allocation import Tenants
    from penstock.kube.node.announcement import Announcement
    from penstock.kube.node.inventory import Inventory
    from penstock.kube.node.pods import NodePods
    from penstock.model import PenstockError

Log = Any  # log(event, **fields)


class DraWay:
    """Its sockets are `socket`, from entering to leaving; `duties` run meanwhile."""

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        inventory: Inventory,
        announcement: Announcement,
        pods: NodePods,
        tenants: Tenants,
        log: Log,
        kubelet_dir: Path,
        settled_s: float,
        unseen: Collection[str] | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._inventory = inventory
        self._announcement = announcement
        self._slices = Slices(api, node)
        driver = Driver(api, tenants, inventory, node, log, unseen=unseen)
        self.socket = Sockets(kubelet_dir, driver, Health(inventory, node), log)
        self._leftovers = Leftovers(
            tenants,
            pods,
            Kubelet(kubelet_dir),
            under_way=driver.under_way,
            log=log,
            settled_s=settled_s,
        )
        self._unresizable = Unresizable(api, tenants, pods, node, log)
        inventory.changed.append(self._publish)
        announcement.changed.append(self._publish)

    def duties(self) -> list[Coroutine[Any, Any, None]]:
        """Each runs until it is cancelled."""
        return [
            self._slices.cache.run(),
            self._slices.run(),
            self._leftovers.run(),
            self._unresizable.run(),
        ]

    @property
    def problem(self) -> PenstockError | None:
        """What does not work of it."""
        return self._slices.cache.problem or self._slices.problem

    def why_not_ready(self) -> str:
        """Empty: Pods can have vGPUs."""
        if not self.socket.registration.is_registered:
            return "the kubelet has not registered the driver yet"
        if not self._slices.is_settled:
            return "the node's ResourceSlices are not written yet"
        return ""

    def _publish(self) -> None:
        node = self._announcement.node
        if node is None or not self._inventory.is_ready:
            return
        # What another scheduler gives out must not be given out a second time.
        self._slices.want(node.uid, self._inventory.devices if node.way == BY_CLAIMS else None)

    async def leave(self) -> None:
        """Takes the slices away where the node is served in the other way from now on.

        A kubelet does so only half a minute after its driver has gone; until then claims would be
        allocated on a node where nobody prepares them. Raises `ApiError`.
        """
        found, _ = await self._api.list(NODES, fields=f"metadata.name={self._node}")
        if any(read_node_said(one).way not in {"", BY_CLAIMS} for one in found):
            await self._slices.forget()
