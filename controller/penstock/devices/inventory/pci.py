"""PCI devices from sysfs, whether or not a driver or tool for them is installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DISPLAY, ACCELERATOR = 0x03, 0x12  # base classes of the PCI Code and ID Assignment Specification


@dataclass(frozen=True)
class PciDevice:
    """One function of a device on the PCI bus."""

    address: str  # "0000:01:00.0"
    vendor: int
    device: int
    base_class: int
    driver: str | None  # the bound driver
    iommu_group: str | None


def pci_devices(root: Path) -> list[PciDevice]:
    """All PCI devices by address, without unreadable ones; `root` is the file system's root."""
    found = []
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []
    for folder in folders:
        try:
            found.append(
                PciDevice(
                    address=folder.name.lower(),
                    vendor=_hexadecimal(folder / "vendor"),
                    device=_hexadecimal(folder / "device"),
                    base_class=_hexadecimal(folder / "class") >> 16,
                    driver=_target(folder / "driver"),
                    iommu_group=_target(folder / "iommu_group"),
                )
            )
        except (OSError, ValueError):  # noqa: PERF203 - each by itself
            continue  # the device was unplugged meanwhile
    return found


def _hexadecimal(file: Path) -> int:
    return int(read_line(file), 16)


def _target(link: Path) -> str | None:
    try:
        return link.readlink().name
    except OSError:
        return None


def try_line(file: Path) -> str | None:
    """The first line of a sysfs file; None if the file cannot be read."""
    try:
        return read_line(file)
    except OSError:
        return None


def read_line(file: Path) -> str:
    """The first line of a sysfs file. Raises OSError if the file cannot be read."""
    with file.open("rb") as stream:  # reads are limited because some files never end
        return stream.read(4096).decode(errors="replace").partition("\n")[0].strip()
