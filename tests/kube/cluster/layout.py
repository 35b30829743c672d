"""What lies where: one directory for all of a cluster's files, one address plan for all clusters.

Every cluster has a network namespace of its own, so that the same addresses never meet.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.kube.cluster.toolchain import PROJECT

STATE = PROJECT / "build" / "kube" / "cluster"
NODES = ("node-1", "node-2")

LAN = "10.190.0.0/24"
API_ADDRESS = "10.190.0.1"  # the control plane's, and the nodes' gateway
API_PORT = 6443
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"  # the first of SERVICES is always the API server's own
PODS = "10.244.0.0/16"
DOMAIN = "cluster.local"


def beside(worker: str) -> Path:
    """The directory of the cluster of one of several processes that run tests side by side."""
    return STATE.with_name(f"{STATE.name}-{worker}")


def states() -> list[Path]:
    """All of these directories that there are; STATE in any case."""
    return [STATE, *(path for path in STATE.parent.glob(beside("*").name) if path.is_dir())]


def node_address(node: str) -> str:
    """The node's address on the LAN."""
    return f"10.190.0.{10 + NODES.index(node) + 1}"


def pod_network(node: str) -> str:
    """Where the node's Pods get their addresses from."""
    return f"10.244.{NODES.index(node) + 1}.0/24"


def cgroup(state: Path) -> Path:
    """The cgroup of the cluster in that directory: known even when the directory is gone."""
    digest = hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:8]
    return Path("/", f"penstock-kube-{digest}")


@dataclass(frozen=True)
class Layout:
    """One cluster's places; it travels as a file to the processes that keep the cluster up."""

    state: Path
    programs: Path
    images: tuple[Path, ...]  # the sandbox's image first: no Pod starts before it is there

    @property
    def secrets(self) -> Path:
        return self.state / "secrets"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def kubeconfig(self) -> Path:
        """Of the cluster's administrator, for this machine's own processes."""
        return self.state / "kubeconfig"

    @property
    def keeper(self) -> Path:
        """Holds the keeper's process id; the keeper has it locked for as long as it lives."""
        return self.state / "keeper"

    def node(self, node: str) -> Path:
        """The folder with all of a node's own files."""
        return self.state / node

    def cgroup(self, node: str) -> Path:
        """The cgroup below which the node's Pods lie, as a path in every hierarchy."""
        return cgroup(self.state) / node

    def save(self) -> None:
        """Writes it into the state directory, whole or not at all."""
        aside = self.state / ".layout.json"
        aside.write_text(json.dumps(asdict(self), default=str))
        aside.rename(self.state / "layout.json")


def stored(state: Path) -> Layout | None:
    """The layout of the cluster in that directory; None where there is none."""
    try:
        read = json.loads((state / "layout.json").read_text())
    except FileNotFoundError:
        return None
    images = tuple(Path(image) for image in read["images"])
    return Layout(Path(read["state"]), Path(read["programs"]), images)
