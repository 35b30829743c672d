"""The process of a node: all its duties, from start to SIGTERM."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from penstock.api import AgentClient
from penstock.kube import serving
from penstock.kube.api import Api
from penstock.kube.names import BY_EXTENDER
from penstock.kube.node.allocation import Tenants
from penstock.kube.node.announcement import Announcement
from penstock.kube.node.driver import Driver
from penstock.kube.node.happenings import Happenings
from penstock.kube.node.health import Health
from penstock.kube.node.inventory import Inventory
from penstock.kube.node.kubelet import Kubelet
from penstock.kube.node.leftovers import SETTLED_S, Leftovers
from penstock.kube.node.pods import NodePods
from penstock.kube.node.registration import Sockets
from penstock.kube.node.slices import Slices
from penstock.model import PenstockError

LOOK_S = 1.0
Log = Any  # log(event, **fields)


@dataclass(frozen=True)
class Options:
    """How the process was started."""

    node: str
    agent_socket: Path
    kubelet_dir: Path = Path("/var/lib/kubelet")
    kubeconfig: Path | None = None
    probes: tuple[str, int] | None = ("127.0.0.1", 9472)
    settled_s: float = SETTLED_S


async def serve(options: Options, log: Log) -> None:
    """Runs until SIGTERM or SIGINT. Raises `PenstockError` when it cannot begin."""
    agent = AgentClient.local(options.agent_socket)
    try:
        async with await Api.connect(options.kubeconfig) as api:
            await _Node(options, api, agent, log).serve()
    finally:
        agent.close()


class _Node:
    """The duties, joined."""

    def __init__(self, options: Options, api: Api, agent: AgentClient, log: Log) -> None:
        self._options = options
        self._api = api
        self._log = log
        node = options.node
        tenants = Tenants(agent)
        self._inventory = Inventory(agent)
        self._announcement = Announcement(api, node)
        self._slices = Slices(api, node)
        self._pods = NodePods(api, node)
        self._driver = Driver(api, tenants, self._inventory, node, log)
        self._sockets = Sockets(
            options.kubelet_dir, self._driver, Health(self._inventory, node), log
        )
        self._leftovers = Leftovers(
            tenants, self._pods, Kubelet(options.kubelet_dir),
            under_way=self._driver.under_way, log=log, settled_s=options.settled_s,
        )  # fmt: skip
        self._happenings = Happenings(
            api, lambda: AgentClient.local(options.agent_socket), tenants, self._pods,
            node=node, log=log,
        )  # fmt: skip
        self._inventory.changed.append(self._publish)
        self._announcement.changed.append(self._publish)
        self._problems: dict[str, str] = {}

    async def serve(self) -> None:
        """Until SIGTERM or SIGINT."""
        async with self._sockets:
            duties = [
                self._inventory.run(),
                self._announcement.cache.run(),
                self._announcement.run(),
                self._slices.cache.run(),
                self._slices.run(),
                self._pods.cache.run(),
                self._leftovers.run(),
                self._happenings.run(),
                self._tell(),
            ]
            self._log("started", node=self._options.node, server=self._api.server)
            if self._options.probes is None:
                stopped = await serving.until_stopped(*duties)
            else:
                app = web.Application()
                serving.probes(app, self._why_not_ready)
                async with serving.listening(app, self._options.probes):
                    stopped = await serving.until_stopped(*duties)
            self._log("stopping", signal=stopped)

    def _publish(self) -> None:
        node, devices = self._announcement.node, self._inventory.devices
        if node is None or not self._inventory.is_ready:
            return
        self._announcement.want(devices)
        # What another scheduler gives out must not be given out a second time.
        self._slices.want(node.uid, () if node.way == BY_EXTENDER else devices)

    def _why_not_ready(self) -> str:
        if not self._sockets.registration.is_registered:
            return "the kubelet has not registered the driver yet"
        if not self._slices.is_settled:
            return "the node's ResourceSlices are not written yet"
        return next(iter(self._problems.values()), "")

    async def _tell(self) -> None:
        """Says once what does not work, and once that it works again."""
        while True:
            now: dict[str, PenstockError | None] = {
                "agent": self._inventory.problem,
                "node": self._announcement.cache.problem or self._announcement.problem,
                "slices": self._slices.cache.problem or self._slices.problem,
                "pods": self._pods.cache.problem,
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
        f"the cluster has no node {name!r}", "none of that name is registered",
        "--node names it as `kubectl get nodes` does",
    )  # fmt: skip
