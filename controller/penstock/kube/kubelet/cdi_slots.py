"""CDI specs of slots: what a container with that slot is given, written before it starts.

A slot's name is made up when a kubelet allocates it, is used for one container of one Pod, and
never again: container runtimes read specs some time after they are written, and what one of them
has read before must not be another Pod's.
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
    """The qualified name of a slot that there was never before."""
    return f"{KIND}={secrets.token_hex(NAME_BYTES)}"


def name_of(cdi_devices: Sequence[str]) -> str:
    """The slot among the devices that were answered to a kubelet; empty: there is none."""
    prefix = f"{KIND}="
    names = [one.removeprefix(prefix) for one in cdi_devices if one.startswith(prefix)]
    good = len(names) == 1 and len(names[0]) <= 63 and names[0].isascii() and names[0].isalnum()
    return names[0] if good else ""


class Slots:
    """Those of one directory of CDI specs. One writer at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._specs = cdi.SpecDirectory(directory, KIND)

    def write(self, slot: str, cdi_devices: Sequence[str]) -> None:
        """Gives whoever has the slot all that these devices give, in their order.

        A kubelet takes one name from a plugin, before anybody knows whose it will be: so the slot
        becomes the tenant's device with its vendor's beside it.

        Raises:
            PenstockError: one of the devices is in no spec, or nothing can be written.
        """
        edits: Spec = {}
        version = cdi.VERSION
        seen: set[Path] = set()  # specs whose edits for all of their devices are in already
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
        """Whose each slot is: the tenant's name, empty where the spec does not say."""
        return {
            slot: Path(self._specs.pages_of(slot) or "/none/none").parent.name
            for slot in self._specs.devices()
        }

    def remove(self, slot: str) -> None:
        """No new container gets it."""
        self._specs.remove(slot)

    def remove_leftovers(self) -> None:
        """What a writer that was killed left."""
        self._specs.remove_leftovers()

    def _find(self, device: str) -> tuple[Path, Spec, Spec]:
        """The file with that device, what is in it, and the device's own edits."""
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
            else "the agent writes it: see whether both have the same --cdi-dir",
        )

    def _files(self, kind: str, name: str) -> Iterator[Path]:
        """Where it may be; later directories of a runtime's go before earlier ones."""
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
    """A spec; None: none that a runtime would read."""
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
            edits[key] = value  # intelRdt: one a container


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
