"""Driver lock: only one process serves a node's kubelet, in either allocation mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kube.objects.names import DRIVER
from penstock.model import PenstockError
from penstock.node.tenants.lock import take

if TYPE_CHECKING:
    from pathlib import Path


def take_driver_lock(kubelet_dir: Path) -> int:
    """Takes the lock, which lasts while the returned descriptor is open. Raises `PenstockError`."""
    file = kubelet_dir / "plugins" / DRIVER / "lock"
    try:
        file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        return take(file)
    except BlockingIOError as error:
        raise PenstockError(
            "this node is already served", f"another process has locked {file}",
            "end the other process first",
            reason="not-now",
        ) from error  # fmt: skip
    except OSError as error:
        raise PenstockError(
            f"{file} cannot be created", str(error),
            "set --kubelet-dir to the kubelet's own directory, and run as root",
        ) from error  # fmt: skip
