"""CDI specs of slots: the devices of a container with a slot, written before the container starts.

Each time a kubelet allocates a slot, the slot gets a new name, which is used for one container of
one Pod and never again. A container runtime may read a spec some time after it is written, and may
still use an old spec of the same name, which must not belong to another Pod.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from penstock.kube.objects.names import GROUP
from penstock.model import PenstockError
from penstock.node.containers import cdi

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KIND = f"{GROUP}/slot"
NAME_BYTES = 10
MOST_BYTES = 16 << 20
STATIC = Path("/etc/cdi")
Spec = dict[str, Any]


def new_slot() -> str:
    """A new qualified name for a slot, which was never used before."""
    return f"{KIND}={secrets.token_hex(NAME_BYTES)}"


def name_of(cdi_devices: Sequence[str]) -> str:
    """The slot's name among the CDI devices of an allocation; empty if there is none."""
    prefix = f"{KIND}="
    names = [one.removeprefix(prefix) for one in cdi_devices if one.startswith(prefix)]
    good = len(names) == 1 and len(names[0]) <= 63 and names[0].isascii() and names[0].isalnum()
    return names[0] if good else ""


class Slots:
    """The slots in one directory of CDI specs, which only one process may write at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._specs = cdi.SpecDirectory(directory, KIND)

    def write(self, slot: str, cdi_devices: Sequence[str]) -> None:
        """Writes a slot's spec with the edits of all these devices, in their order.

        The plugin returns a single name to the kubelet before it knows the container. So the slot
        combines the tenant's device with those of the vendor.

        Raises:
            PenstockError: no spec defines one of the devices, or the slot's spec cannot be written.
        """
        edits: Spec = {}
        version = cdi.VERSION
        seen: set[Path] = set()  # specs whose common edits are already included
        for device in cdi_devices:
            file, spec, own = self._find(device)
            version = max(version, str(spec.get("cdiVersion") or ""), key=_version)
            if file not in seen:
                seen.add(file)
                _add(edits, spec.get("containerEdits") or {})
            _add(edits, own)
        one = {"name": slot, "containerEdits": edits}
        self._specs.write(slot, {"cdiVersion": version, "kind": KIND, "devices": [one]})

    def tenants(self) -> dict[str, str]:
        """The tenant's name for each slot; empty if the slot's spec has none."""
        return {
            slot: Path(self._specs.pages_of(slot) or "/none/none").parent.name
            for slot in self._specs.devices()
        }

    def remove(self, slot: str) -> None:
        """Removes a slot, so that no new container gets it."""
        self._specs.remove(slot)

    def remove_leftovers(self) -> None:
        """Removes temporary files of a writer that was killed."""
        self._specs.remove_leftovers()

    def _find(self, device: str) -> tuple[Path, Spec, Spec]:
        """The file that defines a device, its spec, and the device's own edits."""
        kind, _, name = device.partition("=")
        for file in self._files(kind, name):
            spec = _read(file)
            if spec is None or spec.get("kind") != kind:
                continue
            for one in spec.get("devices") or []:
                if isinstance(one, dict) and one.get("name") == name:
                    return file, spec, one.get("containerEdits") or {}
        raise PenstockError(
            f"no container can use {device}",
            f"no CDI spec in {self._directory} or {STATIC} defines it",
            "run nvidia-ctk cdi generate --device-name-strategy=uuid to write NVIDIA's specs"
            if kind.startswith("nvidia.com/")
            else "check that the agent, which writes it, has the same --cdi-dir",
        )

    def _files(self, kind: str, name: str) -> Iterator[Path]:
        """Yields files that may define a device, beginning with those that take precedence."""
        if kind == cdi.KIND:
            yield cdi.SpecDirectory(self._directory).file_of(name)
            return
        for folder in (self._directory, STATIC):
            with contextlib.suppress(OSError):
                yield from sorted(
                    one for one in folder.iterdir()
                    if one.suffix in {".json", ".yaml"} and not one.name.startswith((".", GROUP))
                )  # fmt: skip


def _read(file: Path) -> Spec | None:
    """Reads a spec; None if no runtime would accept it."""
    try:
        if file.stat().st_size > MOST_BYTES:
            return None
        text = file.read_text(encoding="utf-8")
        spec = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return spec if isinstance(spec, dict) else None


def _add(edits: Spec, more: Spec) -> None:
    for key, value in more.items():
        if isinstance(value, list):
            edits[key] = [*edits.get(key, []), *value]
        else:
            edits[key] = value  # intelRdt, of which a container has only one


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
