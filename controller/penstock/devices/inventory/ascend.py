"""Inventory of Huawei Ascend NPUs, from `npu-smi info`.

The command's table has two rows per chip: "NPU Name | Health | Power(W) Temp(C)
Hugepages-Usage(page)" and "Chip Phy-ID | Bus-Id | AICore(%) Memory-Usage(MB) HBM-Usage(MB)". NA or
- means unknown; chips without HBM have no last column. Examples from 910B and A3 machines, releases
24.1 to 26.0, are in github.com/vllm-project/vllm-ascend issues 1903, 2035, 2534 and 12980. A
megabyte is 2^20 bytes in this table (65536 for a 64 GB chip).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices.inventory.figure import NotAvailable, number
from penstock.devices.inventory.pci import ACCELERATOR, pci_devices
from penstock.devices.inventory.report import DeviceReport, Health, Kind, Survey, blank
from penstock.devices.inventory.tool import TIMEOUT_S, ask, nothing_there

if TYPE_CHECKING:
    from penstock.devices.inventory.figure import Figure

HUAWEI = 0x19E5
PACKAGE = "the Ascend driver package, which brings npu-smi (/usr/local/Ascend/driver/tools)"
NOT_TOLD = NotAvailable("npu-smi info does not report it")
MIB = 1 << 20
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_USED_OF = re.compile(r"(\d+)\s*/\s*(\d+)")


class AscendInventory:
    """Ascend chips; each chip is a device."""

    kind: Kind = "ascend"

    def __init__(self, root: Path = Path("/"), timeout_s: float = TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s

    def look(self) -> Survey:
        """The chips that `npu-smi info` lists; without npu-smi, the chips on the PCI bus."""
        said = ask(["npu-smi", "info"], package=PACKAGE, timeout_s=self._timeout_s)
        if not isinstance(said, NotAvailable):
            return read_table(said)
        found = [
            dataclasses.replace(
                blank("ascend", index, one.address, f"Ascend, PCI {one.device:04x}", said),
                bus_id=one.address,
            )
            for index, one in enumerate(
                one
                for one in pci_devices(self._root)
                if one.vendor == HUAWEI and one.base_class == ACCELERATOR
            )
        ]
        return Survey("ascend", tuple(found), said if found else nothing_there("Ascend NPU", said))


def read_table(text: str) -> Survey:
    """The chips in the table that `npu-smi info` prints."""
    version = re.search(r"npu-smi\s+\S+\s+Version:\s*(\S+)", text)
    found: list[DeviceReport] = []
    odd = 0
    board: tuple[list[str], str, list[str]] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|") or len(cells) != 3:
            continue
        head = cells[0].split()
        if not head or not head[0].isdigit():
            continue  # headings, or the table of processes
        if _BUS_ID.fullmatch(cells[1]) is None:
            odd += board is not None
            board = (head, cells[1], cells[2].split())
            continue
        if board is None:
            odd += 1
            continue
        found.append(_chip(len(found), board, cells, version[1] if version else None))
        board = None
    odd += board is not None
    if not found:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        return Survey(
            "ascend",
            (),
            NotAvailable(
                f"npu-smi info printed no known table; its output begins with {first[:80]!r}",
                "run npu-smi info by hand; if it lists chips, report its format",
            ),
        )
    lacking = NotAvailable(f"{odd} rows of npu-smi info have an unknown format") if odd else None
    return Survey("ascend", tuple(found), lacking)


def _chip(
    index: int, board: tuple[list[str], str, list[str]], cells: list[str], version: str | None
) -> DeviceReport:
    head, health, power_and_heat = board
    chip = cells[0].split()
    amounts = [(int(a), int(b)) for a, b in _USED_OF.findall(cells[2])]
    # The chip's HBM if it has any, else its only memory.
    used, total = next((one for one in reversed(amounts) if one[1]), (None, None))
    attributes = {"npu": head[0], "chip": chip[0]}
    if len(chip) > 1:
        attributes["phy_id"] = chip[1]
    busy = cells[2].split()[:1]
    return dataclasses.replace(
        blank("ascend", index, cells[1].lower(), " ".join(head[1:]) or "Ascend", NOT_TOLD),
        bus_id=cells[1].lower(),
        driver_version=version or NOT_TOLD,
        memory_total_bytes=NOT_TOLD if total is None else total * MIB,
        memory_used_bytes=NOT_TOLD if used is None else used * MIB,
        busy_permille=number(busy[0], 10) if busy else NOT_TOLD,
        power_milliwatts=_figure(power_and_heat, 0, 1000),
        temperature_celsius=_figure(power_and_heat, 1, 1),
        health=_health(health),
        attributes=attributes,
    )


def _figure(words: list[str], place: int, scale: float) -> Figure[int]:
    return number(words[place], scale) if place < len(words) else NOT_TOLD


def _health(word: str) -> Figure[Health]:
    if word == "OK":
        return Health("ok")
    if word.upper() in {"", "NA", "-", "UNKNOWN"}:
        return NotAvailable(f"npu-smi info reports {word or 'nothing'!r} as its health")
    return Health("unhealthy", f"npu-smi info says {word[:40]}: see npu-smi info -t health")
