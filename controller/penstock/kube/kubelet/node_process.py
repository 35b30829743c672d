"""Node process (`penstock kube node`): all its tasks, from its start to SIGTERM."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.kube.kubelet.allocation import Tenants
from penstock.kube.kubelet.dra_mode import DraWay
from penstock.kube.kubelet.driver_upgrade import DriverUpgrade
from penstock.kube.kubelet.node_annotation import Announcement
from penstock.kube.kubelet.node_inventory import Inventory
from penstock.kube.kubelet.node_pods import NodePods
from penstock.kube.kubelet.orphan_collection import SETTLED_S
from penstock.kube.kubelet.plugin_mode import PluginWay
from penstock.kube.kubelet.pod_events import PodEvents
from penstock.kube.kubelet.readiness import Readiness
from penstock.kube.objects import http_server as serving
from penstock.kube.objects.api_client import Api, ApiError
from penstock.kube.objects.names import BY_CLAIMS, BY_EXTENDER
from penstock.model import PenstockError
from penstock.node.containers.containers import SPECS
from penstock.node.rpc import AgentClient

if TYPE_CHECKING:
    from collections.abc import Coroutine

LOOK_S = 1.0
LEAVE_WITHIN_S = 5.0
Way = Literal["dra", "plugin"]
CALLED: dict[Way, str] = {"dra": BY_CLAIMS, "plugin": BY_EXTENDER}  # values of the Node's label
Log = Any  # log(event, **fields)


@dataclass(frozen=True)
class Options:
    """The options of the process."""

    node: str
    agent_socket: Path
    kubelet_dir: Path = Path("/var/lib/kubelet")
    kubeconfig: Path | None = None
    probes: tuple[str, int] | None = ("127.0.0.1", 9472)
    settled_s: float = SETTLED_S
    way: Way = "dra"
    way_is_labelled: bool = False  # whether administrators set the Node's label, instead of `way`
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")
    cdi_dir: Path = SPECS
    runtime_socket: Path = Path("/run/containerd/containerd.sock")
    # Namespaces whose Pods the webhook does not see; None if there is no webhook.
    unseen: frozenset[str] | None = None


async def serve(options: Options, log: Log) -> None:
    """Runs until SIGTERM or SIGINT. Raises `PenstockError` if it cannot start."""
    agent = AgentClient.local(options.agent_socket)
    try:
        async with await Api.connect(options.kubeconfig) as api:
            await _Node(options, api, agent, log).serve()
    finally:
        agent.close()


class _Node:
    """All tasks of the process."""

    def __init__(self, options: Options, api: Api, agent: AgentClient, log: Log) -> None:
        self._options = options
        self._api = api
        self._log = log
        node = options.node
        tenants = Tenants(agent)
        self._inventory = Inventory(agent)
        self._announcement = Announcement(
            api, node, CALLED[options.way], way_is_labelled=options.way_is_labelled
        )
        self._pods = NodePods(api, node)
        self._way: DraWay | PluginWay
        if options.way == "dra":
            self._way = DraWay(
                api,
                node,
                inventory=self._inventory,
                announcement=self._announcement,
                pods=self._pods,
                tenants=tenants,
                log=log,
                kubelet_dir=options.kubelet_dir,
                settled_s=options.settled_s,
                unseen=options.unseen,
            )
        else:
            self._way = PluginWay(
                api,
                self._inventory,
                self._pods,
                tenants,
                log=log,
                kubelet_dir=options.kubelet_dir,
                device_plugin_dir=options.device_plugin_dir,
                cdi_dir=options.cdi_dir,
                runtime_socket=options.runtime_socket,
            )
        self._happenings = PodEvents(
            api, lambda: AgentClient.local(options.agent_socket), tenants, self._pods,
            node=node, log=log,
        )  # fmt: skip
        self._running = Readiness(api, tenants, self._pods, self._happenings, log)
        self._inventory.changed.append(lambda: self._announcement.want(self._inventory.devices))
        self._upgrade = DriverUpgrade(agent, self._announcement, self._inventory, log)
        self._problems: dict[str, str] = {}

    async def serve(self) -> None:
        """Serves until SIGTERM or SIGINT."""
        async with self._way.socket:
            tasks: list[Coroutine[Any, Any, None]] = [
                self._inventory.run(),
                self._announcement.cache.run(),
                self._announcement.run(),
                self._pods.cache.run(),
                self._happenings.run(),
                self._running.run(),
                self._upgrade.run(),
                *self._way.tasks(),
                self._tell(),
            ]
            options = self._options
            self._log("started", node=options.node, way=options.way, server=self._api.server)
            if options.probes is not None:
                tasks.append(serving.probed(self._why_not_ready, options.probes, self._log))
            stopped = await serving.until_stopped(*tasks)
            self._log("stopping", signal=stopped)
            await self._leave()

    async def _leave(self) -> None:
        """Removes objects that would mislead schedulers, without waiting long for the server."""
        try:
            await asyncio.wait_for(self._way.leave(), LEAVE_WITHIN_S)
        except asyncio.TimeoutError:
            self._log("left in haste", why="the API server does not respond")
        except ApiError as error:
            self._log("left in haste", why=str(error))

    def _why_not_ready(self) -> str:
        if not self._announcement.is_settled:
            return "the Node's devices annotation is not written yet"
        return self._way.why_not_ready() or next(iter(self._problems.values()), "")

    async def _tell(self) -> None:
        """Logs each problem when it begins, and when it is over."""
        while True:
            now: dict[str, PenstockError | None] = {
                "agent": self._inventory.problem,
                "node": self._announcement.cache.problem or self._announcement.problem,
                self._options.way: self._way.problem,
                "pods": self._pods.cache.problem,
                "conditions of Pods": self._running.problem,
                "driver": self._upgrade.problem,
            }
            if self._announcement.cache.is_ready and self._announcement.node is None:
                now["node"] = _no_node(self._options.node)
            for what, problem in now.items():
                if problem is None and self._problems.pop(what, ""):
                    self._log("works again", what=what)
                elif problem is not None:
                    if what not in self._problems:
                        self._log("does not work", what=what, why=str(problem))
                    self._problems[what] = str(problem)
            await asyncio.sleep(LOOK_S)


def _no_node(name: str) -> PenstockError:
    return PenstockError(
        f"the cluster has no node {name!r}", "no node of that name is registered",
        "set --node to a name from `kubectl get nodes`",
    )  # fmt: skip
