"""Inventory of Google TPUs on the PCI bus, and of the device nodes that programs open.

Vendor 1ae0 and the device numbers are from github.com/jax-ml/jax, jax/_src/hardware_utils.py. Chips
up to v4 have a node of the accel class (/dev/accel0); programs open later chips through vfio
(/dev/vfio/GROUP).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from penstock.devices.inventory.figure import NotAvailable
from penstock.devices.inventory.pci import PciDevice, pci_devices
from penstock.devices.inventory.report import DeviceReport, Health, Kind, Survey, blank

GOOGLE = 0x1AE0
MODELS = {
    0x0027: "TPU v2 or v3",
    0x0056: "TPU",
    0x005E: "TPU v4",
    0x0062: "TPU v5p",
    0x0063: "TPU v5e",
    0x006F: "TPU v6e",
    0x0076: "TPU 7x",
}
NOT_TOLD = NotAvailable(
    "the kernel reports no values of a TPU", "the program that holds it serves them: see tpu-info"
)


class TpuInventory:
    """TPU chips."""

    kind: Kind = "tpu"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def look(self) -> Survey:
        """The chips on the PCI bus."""
        chips = [
            one for one in pci_devices(self._root) if one.vendor == GOOGLE and one.device in MODELS
        ]
        if not chips:
            return Survey("tpu", (), NotAvailable("no TPU is on the PCI bus"))
        nodes = self._accel_nodes()
        return Survey("tpu", tuple(self._chip(i, one, nodes) for i, one in enumerate(chips)))

    def _chip(self, index: int, chip: PciDevice, nodes: dict[str, str]) -> DeviceReport:
        node = nodes.get(chip.address)
        if node is None and chip.driver == "vfio-pci" and chip.iommu_group:
            node = f"/dev/vfio/{chip.iommu_group}"
        lost = chip.driver is None
        return dataclasses.replace(
            blank("tpu", index, chip.address, MODELS[chip.device], NOT_TOLD),
            bus_id=chip.address,
            driver_version=chip.driver or NotAvailable("no driver is bound to it", "bind vfio-pci"),
            health=Health("lost", "no driver is bound to it") if lost else NOT_TOLD,
            attributes={"node": node} if node else {},
        )

    def _accel_nodes(self) -> dict[str, str]:
        """Device nodes of the accel class, by PCI address."""
        found = {}
        try:
            entries = sorted((self._root / "sys/class/accel").iterdir())
        except OSError:
            return {}
        for entry in entries:
            try:
                found[(entry / "device").resolve().name.lower()] = f"/dev/accel/{entry.name}"
            except OSError:
                continue
            if (self._root / "dev" / entry.name).exists():
                found[(entry / "device").resolve().name.lower()] = f"/dev/{entry.name}"
        return found
