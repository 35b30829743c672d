"""Node cleanup: removes the files that are left on a node after its agent is gone."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kube.kubelet.cdi_slots import KIND as SLOT
from penstock.kube.objects.api_client import PODS
from penstock.kube.objects.names import DRIVER
from penstock.model import PenstockError
from penstock.node.containers.cdi import SpecDirectory
from penstock.node.tenants.state import State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.kube.objects.api_client import Api

LOOK_AGAIN_S = 0.5


@dataclass(frozen=True)
class NodeFiles:
    """The directories that contain Penstock's files, as paths of this process."""

    state: Path
    data: Path
    specs: Path  # CDI specs, including those of other vendors
    kubelet: Path
    device_plugins: Path

    def has_agent(self) -> bool:
        """Whether an agent still owns the files."""
        return State(self.state).has_agent()

    def remove(self) -> Iterator[Path]:
        """Removes the files, and yields each path.

        Files that containers have mounted stay available to them.

        Raises:
            OSError: a file cannot be removed.
        """
        for specs in (SpecDirectory(self.specs), SpecDirectory(self.specs, SLOT)):
            for device in specs.devices():
                if specs.remove(device):
                    yield specs.file_of(device)
            specs.remove_leftovers()
        for place in (*self._sockets(), self.state, self.data):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(place) if place.is_dir() else place.unlink()
                yield place
        with contextlib.suppress(OSError):  # it contains other specs, or it never existed
            self.specs.rmdir()
            yield self.specs

    def _sockets(self) -> Iterator[Path]:
        """Our sockets for the kubelet, whose names begin with the driver's name."""
        plugins, registry = self.kubelet / "plugins", self.kubelet / "plugins_registry"
        for folder in (plugins, registry, self.device_plugins):
            yield from sorted(folder.glob(f"{DRIVER}*"))


async def await_no_pods(api: Api, namespace: str, labels: str, node: str, within_s: float) -> None:
    """Waits until the node has no Pod with these labels.

    Raises:
        PenstockError: such a Pod still exists after `within_s`.
    """
    until_s = time.monotonic() + within_s
    while True:
        found, _ = await api.list(PODS, namespace, labels=labels, fields=f"spec.nodeName={node}")
        if not found:
            return
        if time.monotonic() > until_s:
            raise PenstockError(
                f"Pod {found[0]['metadata']['name']} on {node} does not end",
                f"it still exists after {within_s:g} s", "find out why with kubectl describe pod",
                reason="not-now",
            )  # fmt: skip
        await asyncio.sleep(LOOK_AGAIN_S)
