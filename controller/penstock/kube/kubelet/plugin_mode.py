"""Device plugin mode: the socket and tasks of a node that uses the device plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.kube.kubelet.cdi_slots import Slots
from penstock.kube.kubelet.container_runtime import Runtime
from penstock.kube.kubelet.container_start import ContainerStart
from penstock.kube.kubelet.device_plugin import Plugin
from penstock.kube.kubelet.placement_sync import PlacementSync
from penstock.kube.kubelet.plugin_socket import PluginSocket
from penstock.kube.kubelet.reconciler import Reconciler

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from penstock.kube.kubelet.allocation import Tenants
    from penstock.kube.kubelet.node_inventory import Inventory
    from penstock.kube.kubelet.node_pods import NodePods
    from penstock.kube.objects.api_client import Api
    from penstock.model import PenstockError

Log = Any  # log(event, **fields)


class PluginWay:
    """The parts of a node in device plugin mode. Run `tasks` within the context of `socket`."""

    def __init__(
        self,
        api: Api,
        inventory: Inventory,
        pods: NodePods,
        tenants: Tenants,
        *,
        log: Log,
        kubelet_dir: Path,
        device_plugin_dir: Path,
        cdi_dir: Path,
        runtime_socket: Path,
    ) -> None:
        slots = Slots(cdi_dir)
        starting = ContainerStart(
            device_plugin_dir, pods, tenants, runtime=Runtime(runtime_socket), slots=slots, log=log
        )
        following = PlacementSync(api, tenants, pods, under_way=starting.under_way, log=log)
        self._upkeep = Reconciler(
            tenants, pods, slots=slots, following=following, under_way=starting.under_way, log=log
        )
        starting.end_unwanted = self._upkeep.look
        plugin = Plugin(inventory, starting, log)
        self.socket = PluginSocket(device_plugin_dir, kubelet_dir, plugin, log)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """The tasks, each of which runs until cancelled."""
        return [self.socket.run(), self._upkeep.run()]

    @property
    def problem(self) -> PenstockError | None:
        """The current problem; None if all is well."""
        return self.socket.problem

    async def leave(self) -> None:
        """Does nothing, because the extender checks the Node's label, so no scheduler is misled."""

    def why_not_ready(self) -> str:
        """Why Pods cannot get vGPUs yet; empty if they can."""
        return "" if self.socket.is_registered else "the kubelet has not registered the plugin yet"
