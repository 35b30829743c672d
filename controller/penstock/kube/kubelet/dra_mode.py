"""DRA mode: the sockets and tasks of a node that uses the DRA driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.kube.kubelet.device_health import Health
from penstock.kube.kubelet.dra_driver import Driver
from penstock.kube.kubelet.node_annotation import read_node_said
from penstock.kube.kubelet.orphan_collection import OrphanCollector
from penstock.kube.kubelet.pod_resources import Kubelet
from penstock.kube.kubelet.registration import Sockets
from penstock.kube.kubelet.resource_slices import Slices
from penstock.kube.kubelet.unresizable_claims import Unresizable
from penstock.kube.objects.api_client import NODES
from penstock.kube.objects.names import BY_CLAIMS

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine
    from pathlib import Path

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.node_annotation import Announcement
    from penstock.kube.kubelet.node_inventory import Inventory
    from penstock.kube.kubelet.node_pods import NodePods
    from penstock.kube.objects.api_client import Api
    from penstock.model import PenstockError

Log = Any  # log(event, **fields)


class DraWay:
    """The parts of a node in DRA mode. Run `tasks` within the context of `socket`."""

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
        self._leftovers = OrphanCollector(
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

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The tasks, each of which runs until cancelled."""
        return [
            self._slices.cache.run(),
            self._slices.run(),
            self._leftovers.run(),
            self._unresizable.run(),
        ]

    @property
    def problem(self) -> PenstockError | None:
        """The current problem; None if all is well."""
        return self._slices.cache.problem or self._slices.problem

    def why_not_ready(self) -> str:
        """Why Pods cannot get vGPUs yet; empty if they can."""
        if not self.socket.registration.is_registered:
            return "the kubelet has not registered the driver yet"
        if not self._slices.is_settled:
            return "the node's ResourceSlices are not written yet"
        return ""

    def _publish(self) -> None:
        node = self._announcement.node
        if node is None or not self._inventory.is_ready:
            return
        # Devices that the extender allocates must not be offered for claims as well.
        self._slices.want(node.uid, self._inventory.devices if node.way == BY_CLAIMS else None)

    async def leave(self) -> None:
        """Deletes the slices if the node changes to the other allocation mode.

        A kubelet deletes them only half a minute after its driver has gone. Until then, claims
        would be allocated on a node where no driver prepares them.

        Raises:
            ApiError: the API server does not respond, or refuses.
        """
        found, _ = await self._api.list(NODES, fields=f"metadata.name={self._node}")
        if any(read_node_said(one).way not in {"", BY_CLAIMS} for one in found):
            await self._slices.forget()
