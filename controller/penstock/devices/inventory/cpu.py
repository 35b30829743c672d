"""Inventory of this machine's processors, as one device, from /proc and sysfs."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices.inventory.figure import NotAvailable, number
from penstock.devices.inventory.pci import read_line, try_line
from penstock.devices.inventory.report import Kind, Survey, blank

if TYPE_CHECKING:
    from penstock.devices.inventory.figure import Figure

NOT_TOLD = NotAvailable("the kernel does not report it")
WINDOW_S = 0.2  # between two samples, if there is no earlier sample
_SENSORS = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "coretemp", "k10temp")


class CpuInventory:
    """All cores that are online."""

    kind: Kind = "cpu"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before: tuple[int, int] | None = None  # busy and total time, in ticks

    def look(self) -> Survey:
        """The processors, busy as since the last call; the first call measures over 200 ms."""
        info = self._words("proc/cpuinfo", ":")
        memory = self._words("proc/meminfo", ":")
        if not info:
            return Survey("cpu", (), NotAvailable("/proc/cpuinfo cannot be read", "mount /proc"))
        total = _kib(memory.get("MemTotal"))
        left = _kib(memory.get("MemAvailable"))
        used: Figure[int] = NOT_TOLD
        if not isinstance(total, NotAvailable) and not isinstance(left, NotAvailable):
            used = max(0, total - left)
        model = info.get("model name") or info.get("Model") or platform.machine()
        return Survey(
            "cpu",
            (
                dataclasses.replace(
                    blank("cpu", 0, "cpu", model, NOT_TOLD),
                    bus_id=NotAvailable("processors are on no bus"),
                    architecture=platform.machine(),
                    driver_version=platform.release(),
                    memory_total_bytes=total,
                    memory_used_bytes=used,
                    busy_permille=self._busy(),
                    temperature_celsius=self._temperature(),
                    power_milliwatts=NotAvailable("counted by powercap, which only root may read"),
                    health=NotAvailable("the kernel reports no health of processors"),
                    attributes=self._attributes(),
                ),
            ),
        )

    def _words(self, file: str, mark: str) -> dict[str, str]:
        """Keys and values in the file's first paragraph."""
        try:
            text = (self._root / file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return {}
        pairs = (line.partition(mark) for line in text.partition("\n\n")[0].splitlines())
        return {key.strip(): value.strip() for key, _, value in pairs}

    def _busy(self) -> Figure[int]:
        try:
            before = self._before or self._ticks()
            if self._before is None:
                time.sleep(WINDOW_S)
            self._before = now = self._ticks()
        except (OSError, ValueError):
            return NotAvailable("/proc/stat cannot be read")
        passed = now[1] - before[1]
        return (now[0] - before[0]) * 1000 // passed if passed > 0 else NOT_TOLD

    def _ticks(self) -> tuple[int, int]:
        words = read_line(self._root / "proc/stat").split()
        ticks = [int(word) for word in words[1:9]]  # user and nice already include guests
        if words[0] != "cpu" or len(ticks) < 4:
            raise ValueError(words[0])
        idle = sum(ticks[3:5])  # including the time spent waiting for disks
        return sum(ticks) - idle, sum(ticks)

    def _temperature(self) -> Figure[int]:
        for zone in sorted((self._root / "sys/class/thermal").glob("thermal_zone*")):
            if try_line(zone / "type") in _SENSORS:
                return number(try_line(zone / "temp"), 1e-3)
        return NotAvailable("the kernel has no thermal zone for the processor")

    def _attributes(self) -> dict[str, str]:
        found = {}
        with contextlib.suppress(OSError):
            text = (self._root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
            cores = sum(line.startswith("processor") for line in text.splitlines())
            found["cores"] = str(cores)
        with contextlib.suppress(OSError, IndexError):
            found["load_1m"] = read_line(self._root / "proc/loadavg").split()[0]
        return found


def _kib(text: str | None) -> Figure[int]:
    return NOT_TOLD if text is None else number(text.removesuffix("kB"), 1024)
