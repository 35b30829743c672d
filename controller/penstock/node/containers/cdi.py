"""CDI specs, one file for each tenant, in the directory that container runtimes read.

Files are written and removed atomically. The specs use only features of version 0.5.0, because
podman 4.3 reads no newer version; other runtimes read 0.5.0 and later.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError
from penstock.node.containers import places

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VERSION = "0.5.0"
KIND = "penstock.io/vgpu"
_HOOK_TIMEOUT_S = 20
_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_WRITABLE = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


def qualified_name(device: str) -> str:
    """The device's qualified name, as in `podman run --device penstock.io/vgpu=NAME`."""
    return f"{KIND}={device}"


def spec_of(device: str, mounts: Sequence[tuple[str, str, bool]], hook: Path) -> dict[str, Any]:
    """The CDI spec of one device.

    Each item of `mounts` is a host path, a path in the container, and whether it is writable.
    """
    libraries = [f"{places.SHIM}/{name}" for name in places.SHIMS.values()]
    edits = {
        "mounts": [
            {
                "hostPath": host,
                "containerPath": inside,
                "options": list(_WRITABLE if writable else _READ_ONLY),
            }
            for host, inside, writable in mounts
        ],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": str(hook),
                "args": [hook.name, places.PRELOAD, *libraries],
                "timeout": _HOOK_TIMEOUT_S,
            }
        ],
    }
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{"name": device, "containerEdits": edits}],
    }


class SpecDirectory:
    """The CDI specs of one kind in one directory, whichever process wrote them."""

    def __init__(self, directory: Path, kind: str = KIND) -> None:
        self.directory = directory
        self._kind = kind
        self._prefix = kind.replace("/", "-") + "_"  # CDI's names for transient specs

    def file_of(self, device: str) -> Path:
        """The path of the device's spec file."""
        return self.directory / f"{self._prefix}{device}.json"

    def devices(self) -> dict[str, Path]:
        """The spec files of all devices, by device name."""
        try:
            files = sorted(self.directory.glob(f"{self._prefix}*.json"))
        except OSError:
            return {}
        return {file.name.removeprefix(self._prefix).removesuffix(".json"): file for file in files}

    def pages_of(self, device: str) -> str | None:
        """The host path of the quota page that the spec mounts, None without a usable spec."""
        spec = self._read(device)
        try:
            edits = spec["devices"][0]["containerEdits"] if spec else {"mounts": []}
            return next(
                str(mount["hostPath"])
                for mount in edits["mounts"]
                if mount["containerPath"] == f"{places.TENANT}/quota"
            )
        except (KeyError, IndexError, TypeError, StopIteration):
            return None

    def write(self, device: str, spec: dict[str, Any]) -> bool:
        """Writes the spec unless the file already contains it; returns whether it was written.

        Raises:
            PenstockError: the spec cannot be written; the previous one stays in force.
        """
        if self._read(device) == spec:
            return False
        file = self.file_of(device)
        # Runtimes read only files whose names end in .json or .yaml.
        aside = self.directory / f".{file.name}.{secrets.token_hex(6)}"
        try:
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            with aside.open("x", encoding="utf-8") as stream:
                json.dump(spec, stream, indent=1)
                stream.flush()
                os.fchmod(stream.fileno(), 0o644)
                os.fsync(stream.fileno())
            aside.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise PenstockError(
                f"cannot offer {self._kind}={device} to containers",
                f"{file} cannot be written: {error.strerror or error}",
                "run the agent as root, and make sure that the file system has free space",
                reason="unavailable",
            ) from error
        return True

    def remove(self, device: str) -> bool:
        """Removes the device; returns whether it existed. Running containers keep the device."""
        try:
            self.file_of(device).unlink()
        except FileNotFoundError:
            return False
        return True

    def remove_leftovers(self) -> None:
        """Removes a killed writer's files. Only the single writer of our kind may call it."""
        for aside in self.directory.glob(f".{self._prefix}*.json.*"):
            aside.unlink(missing_ok=True)

    def _read(self, device: str) -> dict[str, Any] | None:
        try:
            document = json.loads(self.file_of(device).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None
