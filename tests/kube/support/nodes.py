"""Penstock on the cluster's nodes: an agent with simulated GPUs in each, and what runs beside it.

Processes of the node's own namespaces, as the chart's Pods would be, and nothing of them is the
cluster's: they end with `stop`, and with the node.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from tests.kube.cluster import layout
from tests.kube.support.waiting import until

from penstock.kube.objects.names import DEVICES, WAY
from penstock.node.tenants.state import State
from penstock.node.tenants.tenant import tenants_of
from penstock_shim.pages import PageError, read_quota

if TYPE_CHECKING:
    from tests.kube.cluster.running import Cluster

    from penstock_shim.pages import Limits

INSIDE = ("--mount", "--pid", "--net", "--uts", "--ipc")
# Of a run that is killed nothing stays: nsenter ends with it, and what runs on the node with that.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
STATE = "/run/penstock"  # on each node: its own
CDI = "/run/cdi"
SIMULATED = "h200,2"
PROBES = "127.0.0.1:9472"


@dataclass
class Service:
    """A process of ours on a node, which can be killed and started again."""

    cluster: Cluster
    node: str
    name: str  # of its log: "agent", "kube-node"
    command: tuple[str, ...]
    running: subprocess.Popen[bytes] | None = None

    @property
    def log_file(self) -> Path:
        """The file with its log, over all starts."""
        return self.cluster.layout.logs / f"{self.node}-penstock-{self.name}.log"

    def start(self) -> None:
        """Starts the process; returns at once."""
        inside = [*ENDS_WITH_US, *on_node(self.cluster, self.node, *ENDS_WITH_US, *self.command)]
        with self.log_file.open("ab") as log:
            self.running = subprocess.Popen(
                inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def process(self) -> psutil.Process:
        """The process itself, not the nsenter that started it."""
        outer = self.running
        assert outer is not None, f"{self.name} on {self.node} was not started"

        def inner() -> psutil.Process | None:
            assert outer.poll() is None, f"{self.name} on {self.node} ended: {self.said()[-2000:]}"
            return next(iter(psutil.Process(outer.pid).children()), None)

        return until(f"{self.name} on {self.node} runs", inner)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends the process with that signal; a process that has ended already is no error."""
        if self.running is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
            self.process().send_signal(how)
        self.running.wait(30)
        self.running = None

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self.end(signal.SIGKILL)

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Ends the process and starts it again."""
        self.end(how)
        self.start()

    def said(self) -> str:
        """Its log."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """The lines of its log, as JSON: all, or those of that event."""
        found = []
        for line in self.said().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [one for one in found if not name or one.get("event") == name]


def on_node(cluster: Cluster, node: str, *command: str | Path) -> list[str]:
    """The command line that runs `command` in the node's namespaces, with its files."""
    pid = cluster.process(node).pid
    path = f"PATH={os.environ['PATH']}"
    return ["nsenter", f"--target={pid}", *INSIDE, "env", path, *map(str, command)]


@dataclass
class Node:
    """Penstock on one node."""

    cluster: Cluster
    name: str
    simulated: str = SIMULATED
    way: str = "dra"
    agent: Service = field(init=False)
    beside: Service = field(init=False)
    """`penstock kube node`."""

    def __post_init__(self) -> None:
        self.agent = self.service(
            "agent", "agent", f"--simulate={self.simulated}", f"--node={self.name}",
            f"--state-dir={STATE}", f"--cdi-dir={CDI}", "--metrics=",
        )  # fmt: skip
        self.beside = self.service(
            "kube-node", "kube", "node", f"--node={self.name}", f"--state-dir={STATE}",
            f"--kubeconfig={self.kubeconfig}", f"--probes={PROBES}", "--leftovers-after=4s",
            f"--way={self.way}",
        )  # fmt: skip

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with the address of the API server for this node."""
        return self.cluster.layout.secrets / "admin.kubeconfig"

    def service(self, name: str, *arguments: str) -> Service:
        """A `penstock` command that is to run on this node."""
        return Service(
            self.cluster, self.name, name, (sys.executable, "-m", "penstock", *arguments)
        )

    def start(self) -> None:
        """Starts the agent and the process beside it; returns when Pods can have shares."""
        self.agent.start()
        self.until_answers()
        self.beside.start()
        self.until_ready()

    def until_answers(self) -> None:
        """Returns when the agent takes orders."""
        address = str(State(self.root / STATE[1:]).agent_socket)

        def takes_calls() -> bool:
            with socket.socket(socket.AF_UNIX) as caller:
                return caller.connect_ex(address) == 0

        until(f"the agent of {self.name} answers", takes_calls)

    def until_ready(self) -> None:
        """Returns when the kubelet knows the driver or plugin, and the API server the devices."""
        until(f"{self.name} is ready", lambda: self.probe("readyz") == "ok")

    def probe(self, path: str) -> str:
        """The answer of /readyz or /healthz, from within the node; empty: there is none."""
        asked = ("curl", "--silent", "--fail", "--max-time", "5", f"http://{PROBES}/{path}")
        return self.call(*asked).stdout.strip()

    def stop(self) -> None:
        """Ends both processes and all tenants, and removes what they wrote on the Node."""
        self.beside.end()
        if self.agent.running is not None:
            for name in self.tenants():
                self.run("revoke", name, "--grace=0s")
        self.agent.end()
        unmarked = {"labels": {WAY: None}, "annotations": {DEVICES: None}}
        self.cluster.core.patch_node(self.name, {"metadata": unmarked})

    def call(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a command on the node to its end."""
        return subprocess.run(
            on_node(self.cluster, self.name, *command),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A `penstock` command on the node."""
        command = ("env", f"PENSTOCK_STATE_DIR={STATE}", sys.executable, "-m", "penstock")
        return self.call(*command, *arguments)

    @property
    def root(self) -> Path:
        """The path of a node's file on this machine; the path has no absolute link."""
        return Path("/proc", str(self.cluster.process(self.name).pid), "root")

    def tenants(self) -> dict[str, Limits]:
        """The node's tenants, by name, with the limits of their pages.

        Read from disk, as the agent may be away.
        """
        found = {}
        for tenant in tenants_of(State(self.root / STATE[1:])):
            with contextlib.suppress(PageError):  # it goes just now
                found[tenant.name] = read_quota(tenant.quota_page).limits
        return found

    def files(self, folder: str) -> list[str]:
        """The names in a folder of the node; none if there is no folder."""
        place = self.root / folder[1:]
        return sorted(one.name for one in place.iterdir()) if place.is_dir() else []


def all_nodes(cluster: Cluster, way: str = "dra") -> dict[str, Node]:
    """The cluster's nodes, with nothing started."""
    return {name: Node(cluster, name, way=way) for name in layout.NODES}


def forget_plugins(cluster: Cluster, node: str) -> None:
    """Kills the kubelet and removes its record of device plugins, so that the next one finds none.

    Otherwise it tells of a plugin's resource for five minutes after the plugin has gone.
    """
    record = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    kubelet = cluster.process(f"{node}-kubelet")
    kubelet.suspend()  # it writes none any more
    cluster.on(node, "rm", "--force", record)
    kubelet.kill()
    until("the next one is there", lambda: cluster.running(f"{node}-kubelet"))
    until("and ready", lambda: node in cluster.nodes_ready())
