"""CDI specs of slots: the devices of a container with that slot, written before it starts.

A slot gets a new name when a kubelet allocates it, which is used for one container of one Pod and
never again. Container runtimes may read a spec some time after it is written, and a spec that they
have read before must not belong to another Pod.
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
    """A new, never used qualified name of a slot."""
    return f"{KIND}={secrets.token_hex(NAME_BYTES)}"


def name_of(cdi_devices: Sequence[str]) -> str:
    """The slot's name among the CDI devices of an allocation; empty: there is none."""
    prefix = f"{KIND}="
    names = [one.removeprefix(prefix) for one in cdi_devices if one.startswith(prefix)]
    good = len(names) == 1 and len(names[0]) <= 63 and names[0].isascii() and names[0].isalnum()
    return names[0] if good else ""


class Slots:
    """The slots in one directory of CDI specs. Only one writer at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._specs = cdi.SpecDirectory(directory, KIND)

    def write(self, slot: str, cdi_devices: Sequence[str]) -> None:
        """Writes a slot's spec with the edits of all these devices, in their order.

        A plugin returns one name to the kubelet before it knows the container. So the slot combines
        the tenant's device with those of the vendor.

        Raises:
            PenstockError: one of the devices is in no spec, or the spec cannot be written.
        """
        edits: Spec = {}
        version = cdi.VERSION
        seen: set[Path] = set()  # specs whose common edits are included already
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
        """The tenant's name of each slot; empty where the spec has none."""
        return {
            slot: Path(self._specs.pages_of(slot) or "/none/none").parent.name
            for slot in self._specs.devices()
        }

    def remove(self, slot: str) -> None:
        """Removes a slot: no new container gets it."""
        self._specs.remove(slot)

    def remove_leftovers(self) -> None:
        """Removes temporary files of a writer that was killed."""
        self._specs.remove_leftovers()

    def _find(self, device: str) -> tuple[Path, Spec, Spec]:
        """The file with that device, its spec, and the device's own edits."""
        kind, _, name = device.partition("=")
        for file in self._files(kind, name):
            spec = _read(file)
            if spec is None or spec.get("kind") != kind:
                continue
            for one in spec.get("devices") or []:
                if isinstance(one, dict) and one.get("name") == name:
                    return file, spec, one.get("containerEdits") or {}
        raise PenstockError(
            f"no container can be given {device}",
            f"no CDI spec in {self._directory} or {STATIC} has it",
            "nvidia-ctk cdi generate --device-name-strategy=uuid writes those of NVIDIA's devices"
            if kind.startswith("nvidia.com/")
            else "the agent writes it: check that both have the same --cdi-dir",
        )

    def _files(self, kind: str, name: str) -> Iterator[Path]:
        """Yields files that may have it; a runtime's later directories take precedence."""
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
    """Reads a spec; None: no runtime would read it."""
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
            edits[key] = value  # intelRdt: one per container


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
