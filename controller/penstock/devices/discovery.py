"""Device discovery: a parallel survey of every kind of device on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices.inventory.amd import AmdInventory
from penstock.devices.inventory.ascend import AscendInventory
from penstock.devices.inventory.bpu import BpuInventory
from penstock.devices.inventory.cpu import CpuInventory
from penstock.devices.inventory.figure import NotAvailable
from penstock.devices.inventory.fpga import FpgaInventory
from penstock.devices.inventory.pci import DISPLAY, pci_devices
from penstock.devices.inventory.report import KINDS, DeviceReport, Inventory, Kind, Survey, blank
from penstock.devices.inventory.tool import nothing_there
from penstock.devices.inventory.tpu import TpuInventory
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Collection

NVIDIA = 0x10DE
ROOT = Path("/")
_NVML = threading.Lock()  # the library may be reloaded during a survey


class NvidiaInventory:
    """GPUs and MIG instances, through NVML."""

    kind: Kind = "nvidia"

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    def look(self) -> Survey:
        """The devices that NVML lists; without a driver, the GPUs on the PCI bus."""
        from penstock.devices.backends.nvml import is_simulated

        if is_simulated():
            why = "the NVML that programs find here is the simulated one"
            return Survey("nvidia", (), NotAvailable(why, "its devices are listed as simulated"))
        try:
            return _by_nvml(self.kind)
        except PenstockError as error:
            lacking = NotAvailable(f"{error.what}: {error.why}", "install the NVIDIA driver")
            cards = self._by_pci(lacking)
            return Survey(
                "nvidia", cards, lacking if cards else nothing_there("NVIDIA GPU", lacking)
            )

    def _by_pci(self, lacking: NotAvailable) -> tuple[DeviceReport, ...]:
        cards = [
            one
            for one in pci_devices(self._root)
            if one.vendor == NVIDIA and one.base_class == DISPLAY
        ]
        return tuple(
            dataclasses.replace(
                blank("nvidia", i, one.address, f"NVIDIA, PCI {one.device:04x}", lacking),
                bus_id=one.address,
            )
            for i, one in enumerate(cards)
        )


class SimulatedInventory:
    """Simulated GPUs, from the simulated NVML if programs find it, else from the machine's file."""

    kind: Kind = "simulated"

    def __init__(self, machine: Path | None) -> None:
        self._machine = machine

    def look(self) -> Survey:
        """The devices of the simulated machine."""
        from penstock.devices.backends.nvml import is_simulated
        from penstock.devices.backends.simulated import SimulatedDevices
        from penstock_shim.simulator import MachineError

        if is_simulated():
            with contextlib.suppress(PenstockError):  # it finds no machine, so use `machine`
                return _by_nvml(self.kind)
        if self._machine is None:
            why = "no simulated machine is named"
            return Survey("simulated", (), NotAvailable(why, "name one with --simulate h200"))
        try:
            seen = SimulatedDevices(self._machine).observe()
        except (MachineError, OSError) as error:
            return Survey("simulated", (), NotAvailable(str(error)))
        return Survey("simulated", tuple(one.report for one in seen))


def _by_nvml(kind: Kind) -> Survey:
    """A survey through NVML. Raises `PenstockError` if there is no driver or device."""
    from penstock.devices.backends.nvidia import NvidiaDevices

    with _NVML, contextlib.closing(NvidiaDevices()) as source:
        seen = [one.report for one in source.observe()]
        boards = source.boards()
        parts = [one for one in seen if one.parent]
        found = [
            listed
            for whole in sorted([*boards, *(r for r in seen if not r.parent)], key=_index)
            for listed in (whole, *(one for one in parts if one.parent == whole.id))
        ]
        lacking = NotAvailable("; ".join(source.unanswered)) if source.unanswered else None
    return Survey(kind, tuple(found), lacking)


def _index(report: DeviceReport) -> int:
    return report.index


def survey(
    kinds: Collection[Kind] = KINDS, *, machine: Path | None = None, root: Path = ROOT
) -> list[Survey]:
    """The surveys of `kinds`, in the same order.

    Args:
        kinds: The kinds of device to survey.
        machine: The simulated machine's file, if there is one.
        root: The root of the file system that holds sysfs and proc.
    """
    inventories: list[Inventory] = [
        NvidiaInventory(root),
        SimulatedInventory(machine),
        AscendInventory(root),
        AmdInventory(root),
        TpuInventory(root),
        BpuInventory(root),
        FpgaInventory(root),
        CpuInventory(root),
    ]
    wanted = [one for one in inventories if one.kind in kinds]
    with ThreadPoolExecutor(max_workers=max(1, len(wanted))) as pool:  # tools may take seconds
        return list(pool.map(lambda one: one.look(), wanted))
