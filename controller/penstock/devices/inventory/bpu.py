"""Inventory of Horizon BPUs, from /sys/devices/system/bpu.

Each core has a folder there, whose file `ratio` is the core's use in percent. Source:
d-robotics.github.io/rdk_doc, "BPU Driver sysfs debugging interface". The output of `hrut_somstatus`
is not read, because its format is not documented.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from penstock.devices.inventory.figure import NotAvailable, number
from penstock.devices.inventory.pci import read_line, try_line
from penstock.devices.inventory.report import DeviceReport, Health, Kind, Survey, blank

FOLDER = "sys/devices/system/bpu"
NOT_TOLD = NotAvailable(
    "sysfs does not report it for a BPU", "hrut_somstatus shows temperatures on the board itself"
)


class BpuInventory:
    """BPU cores."""

    kind: Kind = "bpu"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def look(self) -> Survey:
        """The BPU cores in sysfs."""
        folder = self._root / FOLDER
        try:
            cores = sorted(
                (one for one in folder.iterdir() if re.fullmatch(r"bpu\d+", one.name)),
                key=lambda one: int(one.name[3:]),
            )
        except OSError:
            return Survey("bpu", (), NotAvailable(f"no BPU: there is no /{FOLDER}"))
        if not cores:
            return Survey("bpu", (), NotAvailable(f"no BPU core is in /{FOLDER}"))
        return Survey("bpu", tuple(_core(int(one.name[3:]), one) for one in cores))


def _core(index: int, folder: Path) -> DeviceReport:
    try:
        busy = number(read_line(folder / "ratio"), 10)
    except OSError as error:
        busy = NotAvailable(f"{folder.name}/ratio cannot be read: {error.strerror}")
    attributes = {}
    health: Health | NotAvailable = NOT_TOLD
    for name in ("power_enable", "users"):
        said = try_line(folder / name)
        if said is not None:
            attributes[name] = said
    if attributes.get("power_enable") == "0":
        health = Health("unhealthy", "it is switched off (power_enable is 0)")
    return dataclasses.replace(
        blank("bpu", index, folder.name, "Horizon BPU core", NOT_TOLD),
        busy_permille=busy,
        health=health,
        attributes=attributes,
    )
