"""Inventory of FPGAs: the kernel's FPGA managers with their regions, and cards on the PCI bus.

The kernel's Documentation/ABI/testing/sysfs-class-fpga-manager defines the states of a manager.
Xilinx cards (vendor 10ee) are recognised by the class of processing accelerators, Intel's
programmable acceleration cards by their device numbers in the kernel's drivers/fpga/dfl-pci.c.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices.inventory.figure import NotAvailable
from penstock.devices.inventory.pci import ACCELERATOR, PciDevice, pci_devices, read_line
from penstock.devices.inventory.report import DeviceReport, Health, Kind, Survey, blank

if TYPE_CHECKING:
    from penstock.devices.inventory.figure import Figure

XILINX, INTEL = 0x10EE, 0x8086
INTEL_CARDS = {0x09C4: "Arria 10 PAC", 0x0B30: "PAC N3000", 0x0B2B: "PAC D5005", 0xBCCE: "DFL card"}
NOT_TOLD = NotAvailable(
    "the kernel does not report it for an FPGA",
    "the card's own tool may (xbutil examine, fpgainfo)",
)


class FpgaInventory:
    """FPGA managers first, then cards without a manager."""

    kind: Kind = "fpga"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def look(self) -> Survey:
        """The FPGAs in sysfs."""
        found = [self._manager(i, folder) for i, folder in enumerate(self._managers())]
        managed = {report.bus_id for report in found}
        for card in pci_devices(self._root):
            model = _model(card)
            if model is None or card.address in managed:
                continue
            report = blank("fpga", len(found), card.address, model, NOT_TOLD)
            found.append(
                dataclasses.replace(
                    report, bus_id=card.address, driver_version=card.driver or NOT_TOLD
                )
            )
        if not found:
            return Survey(
                "fpga",
                (),
                NotAvailable("no FPGA: the kernel has no manager, and no card is known"),
            )
        return Survey("fpga", tuple(found))

    def _managers(self) -> list[Path]:
        try:
            return sorted((self._root / "sys/class/fpga_manager").iterdir())
        except OSError:
            return []

    def _manager(self, index: int, folder: Path) -> DeviceReport:
        try:
            model = read_line(folder / "name") or folder.name
        except OSError:
            model = folder.name
        address = next(
            (
                part.lower()
                for part in reversed((folder / "device").resolve().parts)
                if re.fullmatch(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", part)
            ),
            None,
        )
        regions = self._root / "sys/class/fpga_region"
        count = len(list(regions.iterdir())) if regions.is_dir() else 0
        return dataclasses.replace(
            blank("fpga", index, folder.name, model, NOT_TOLD),
            bus_id=address or NotAvailable("it is not on the PCI bus"),
            health=_state(folder),
            attributes={"regions_of_all": str(count)},
        )


def _state(folder: Path) -> Figure[Health]:
    try:
        state = read_line(folder / "state")
    except OSError as error:
        return NotAvailable(f"its state cannot be read: {error.strerror}")
    if state.endswith("error") or state == "power off":
        return Health("unhealthy", f"its manager says {state!r}")
    if state in {"unknown", ""}:
        return NotAvailable("its manager does not know its state")
    return Health("ok", "" if state == "operating" else f"its manager says {state!r}")


def _model(card: PciDevice) -> str | None:
    if card.vendor == XILINX and card.base_class == ACCELERATOR:
        return f"Xilinx accelerator card, PCI {card.device:04x}"
    if card.vendor == INTEL and card.device in INTEL_CARDS:
        return f"Intel {INTEL_CARDS[card.device]}"
    return None
