"""Inventory of AMD GPUs, from `amd-smi list|static|metric --json`.

The output is a list with one object per GPU; since ROCm 7 the list is under "gpu_data". Values are
{"value": 42, "unit": "%"} or "N/A"; a whole section may be "N/A" (github.com/henrygd/beszel issue
737, github.com/ROCm/rocm-systems pull requests 2720 and 2987, github.com/ROCm/amdsmi issue 168). A
megabyte is 2^20 bytes in this output.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.devices.inventory.figure import NotAvailable, number
from penstock.devices.inventory.pci import ACCELERATOR, DISPLAY, pci_devices
from penstock.devices.inventory.report import DeviceReport, Kind, Survey, blank
from penstock.devices.inventory.tool import TIMEOUT_S, ask, nothing_there

if TYPE_CHECKING:
    from penstock.devices.inventory.figure import Figure

AMD = 0x1002
PACKAGE = "ROCm's amd-smi-lib, which brings amd-smi"
NOT_TOLD = NotAvailable("amd-smi does not report it")
NO_VERDICT = NotAvailable("amd-smi reports no health", "see amd-smi bad-pages and dmesg")
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "%": 10, "W": 1000, "MW": 1, "C": 1}


class AmdInventory:
    """AMD GPUs, numbered as in amd-smi."""

    kind: Kind = "amd"

    def __init__(self, root: Path = Path("/"), timeout_s: float = TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s

    def look(self) -> Survey:
        """The GPUs that amd-smi lists; without amd-smi, the GPUs on the PCI bus."""
        static = self._ask("static")
        if isinstance(static, NotAvailable):
            cards = self._by_pci(static)
            return Survey("amd", cards, static if cards else nothing_there("AMD GPU", static))
        names, metric = self._ask("list"), self._ask("metric")
        lacking = metric if isinstance(metric, NotAvailable) else None
        found = []
        for index, (gpu, fixed) in enumerate(sorted(static.items())):
            named = {} if isinstance(names, NotAvailable) else names.get(gpu, {})
            now = {} if isinstance(metric, NotAvailable) else metric.get(gpu, {})
            found.append(_gpu((index, gpu), fixed, named, now, lacking or NOT_TOLD))
        if not found:
            lacking = NotAvailable("amd-smi lists no GPU")
        return Survey("amd", tuple(found), lacking)

    def _ask(self, command: str) -> Figure[dict[int, dict[str, Any]]]:
        """The output of an amd-smi command, by GPU number."""
        said = ask(["amd-smi", command, "--json"], package=PACKAGE, timeout_s=self._timeout_s)
        return said if isinstance(said, NotAvailable) else read_gpus(said, f"amd-smi {command}")

    def _by_pci(self, lacking: NotAvailable) -> tuple[DeviceReport, ...]:
        found = [
            one
            for one in pci_devices(self._root)
            if one.vendor == AMD and one.base_class in {DISPLAY, ACCELERATOR}
        ]
        return tuple(
            dataclasses.replace(
                blank("amd", index, one.address, f"AMD, PCI {one.device:04x}", lacking),
                bus_id=one.address,
            )
            for index, one in enumerate(found)
        )


def read_gpus(text: str, command: str) -> Figure[dict[int, dict[str, Any]]]:
    """The objects in the JSON of any amd-smi release, by GPU number; skips warnings before it."""
    begins = [place for mark in "[{" if (place := text.find(mark)) >= 0]
    try:
        data = json.JSONDecoder().raw_decode(text, min(begins))[0] if begins else None
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        data = data.get("gpu_data", [data])
    if not isinstance(data, list):
        return NotAvailable(
            f"{command} --json printed no JSON of a known form", f"run {command} --json by hand"
        )
    return {
        one["gpu"]: one
        for one in data
        if isinstance(one, dict) and isinstance(one.get("gpu"), int) and one["gpu"] >= 0
    }


def _gpu(
    numbers: tuple[int, int],
    fixed: dict[str, Any],
    named: dict[str, Any],
    now: dict[str, Any],
    lacking: NotAvailable,
) -> DeviceReport:
    index, gpu = numbers
    bus_id = _word(fixed, "bus", "bdf") or _word(named, "bdf")
    uuid = _word(named, "uuid")
    used = _amount(now, lacking, ("mem_usage", "used_vram"))
    total = _amount(fixed, NOT_TOLD, ("vram", "size"), ("vram", "vram_size_mb"))
    if isinstance(total, NotAvailable):
        total = _amount(now, lacking, ("mem_usage", "total_vram"))
    attributes = {"gpu": str(gpu)}
    partition = _word(fixed, "partition", "compute_partition")
    if partition:
        attributes["compute_partition"] = partition
    errors = number(_at(now, "ecc", "total_uncorrectable_count"))
    if not isinstance(errors, NotAvailable):
        attributes["uncorrectable_errors"] = str(errors)
    return dataclasses.replace(
        blank(
            "amd", index, uuid or bus_id or f"gpu{gpu}", _word(fixed, "asic", "market_name")
            or "AMD GPU", NOT_TOLD,
        ),
        bus_id=bus_id or NOT_TOLD,
        architecture=_word(fixed, "asic", "target_graphics_version") or NOT_TOLD,
        driver_version=_word(fixed, "driver", "version") or NOT_TOLD,
        memory_total_bytes=total,
        memory_used_bytes=used,
        busy_permille=_amount(now, lacking, ("usage", "gfx_activity")),
        temperature_celsius=_amount(
            now, lacking, ("temperature", "hotspot"), ("temperature", "edge")
        ),
        power_milliwatts=_amount(
            now, lacking, ("power", "socket_power"), ("power", "current_socket_power")
        ),
        health=NO_VERDICT,
        attributes=attributes,
    )  # fmt: skip


def _at(data: object, *path: str) -> object:
    for key in path:
        if not isinstance(data, dict):
            return None
        data = data.get(key)
    return data


def _word(data: object, *path: str) -> str | None:
    found = _at(data, *path)
    return found if isinstance(found, str) and found not in {"", "N/A"} else None


def _amount(data: object, lacking: NotAvailable, *paths: tuple[str, str]) -> Figure[int]:
    """The first valid value at `paths`, converted to the unit that reports use."""
    for path in paths:
        found = _at(data, *path)
        unit = _at(found, "unit")
        scale = _UNITS.get(unit.upper()) if isinstance(unit, str) else None
        if scale is not None:
            value = number(_at(found, "value"), scale)
            if not isinstance(value, NotAvailable):
                return value
    return lacking
