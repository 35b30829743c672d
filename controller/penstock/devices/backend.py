"""The device backend protocol, and lookup of devices by index or UUID.

A backend for another vendor implements `DeviceBackend` in a module of `backends/`, and `open.py`
selects it. For each device it must report the memory, the processes that use it by host pid, and a
UUID that survives restarts and reboots (written as "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
because the quota page holds its 16 bytes). Rated TFLOPS, the memory and device time of a single
process, and utilisation may be None (not reported). Without a process's memory, enforcement cannot
detect a program that bypasses the shim; without its device time or utilisation, enforcement judges
only memory.

Vendor terms (XID, MIG, NVML) stay in the backend: here error codes are numbers, and a partition is
a device that names its parent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.model import PenstockError, human_memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.devices.inventory import DeviceReport


class DeviceLostError(PenstockError):
    """A device does not respond; other devices may."""


@dataclass(frozen=True)
class Device:
    """A device that can be shared. A field is None if the value is not reported."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    context_bytes: int  # memory of a process's context; an estimate on real devices
    tflops: float | None  # rated dense fp16/bf16 tensor rate
    simulated: bool
    parent: str | None = None  # for a partition, the UUID of the whole device
    profile: str | None = None  # for a partition, its size in the vendor's terms

    def __str__(self) -> str:
        kind = "simulated " if self.simulated else ""
        return f"{kind}device {self.index} ({self.name}, {human_memory(self.memory_bytes)})"


class DeviceProcess(NamedTuple):
    """A process as reported by the device or its driver, never by a shim."""

    pid: int
    tag: str | None  # the tenant, if the device knows it (only simulated devices do)
    memory_bytes: int | None
    peak_memory_bytes: int | None
    busy_ns: int | None  # device time since the process started; exact at `at_ns`
    busy_permille: int | None  # recent utilisation, if only that is known
    at_ns: int  # CLOCK_MONOTONIC
    alive: bool


class DeviceLook(NamedTuple):
    """All processes of a device at one instant."""

    at_ns: int  # CLOCK_MONOTONIC
    processes: Sequence[DeviceProcess]
    """Processes as returned by `DeviceBackend.processes`.

    Repeated calls of `look` return the same object for a process whose values have not changed, and
    the same sequence if no process has changed. Such values are exact at the new time as well."""


@dataclass(frozen=True)
class Observation:
    """A device's current state, and what its driver has reported since the last observation."""

    report: DeviceReport  # `id` is the device's UUID; `health` says if the device is lost
    error_codes: tuple[int, ...] = ()  # the vendor's numbers, including application errors


@dataclass(frozen=True)
class DriverLibraries:
    """Absolute paths of the driver libraries that the shim calls; if empty, the shim searches."""

    driver: str  # library through which programs compute
    management: str  # library through which tools read a device's state


class DeviceBackend(Protocol):
    """A source of devices that can be shared, with their telemetry and processes."""

    @property
    def machine(self) -> Path | None:
        """The simulated machine's file; None for real devices."""

    def devices(self) -> list[Device]:
        """All devices in index order, including lost devices.

        Raises:
            PenstockError: no device can be queried, for example because a simulated machine's file
                is gone.
        """

    def observe(self) -> list[Observation]:
        """The current state of all devices; call it once a second. A lost device raises nothing."""

    @property
    def released(self) -> str:
        """Why the driver was released; empty if it was not."""

    def release(self, reason: str) -> None:
        """Releases the driver so that it can be unloaded; from then on all devices count as lost.

        It may be called repeatedly. Thread-safe.
        """

    def reopen(self) -> None:
        """Reopens the driver; later calls of `observe` find the devices."""

    def libraries(self) -> DriverLibraries:
        """The paths of the driver's libraries."""

    def environment(self, tag: str) -> dict[str, str]:
        """The environment variables that a program needs to reach these devices."""

    def processes(self, device: Device) -> list[DeviceProcess]:
        """Processes that the device has seen, including ended processes if it keeps them.

        Raises:
            DeviceLostError: the device does not respond.
        """

    def look(self, device: Device) -> DeviceLook:
        """Like `processes`, for repeated sampling by one thread at a time."""


def find_device(devices: Sequence[Device], word: str) -> Device:
    """The device that `word` names by an index, a UUID or a unique prefix of a UUID.

    Raises:
        PenstockError: no device or several devices match; the error lists the devices.
    """
    if word.isascii() and word.isdigit():
        matching = [device for device in devices if device.index == int(word)]
    else:
        start = word.lower().removeprefix("gpu-")
        uuids = {device.uuid.lower().removeprefix("gpu-"): device for device in devices}
        exact = uuids.get(start)
        matching = (
            [exact]
            if exact
            else [d for uuid, d in uuids.items() if start and uuid.startswith(start)]
        )
    if len(matching) == 1:
        return matching[0]
    why = f"several devices start with {word!r}" if matching else "there is no such device"
    listing = ", ".join(f"{device.index} = {device.uuid} ({device.name})" for device in devices)
    raise PenstockError(f"unknown device {word!r}", why, f"this machine has {listing}")


def find_devices(devices: Sequence[Device], words: Sequence[str]) -> list[Device]:
    """The devices that comma-separated `words` name, without duplicates, in the same order."""
    found: dict[str, Device] = {}
    for word in (part.strip() for words_ in words for part in words_.split(",")):
        if not word:
            raise PenstockError(
                f"--device {','.join(words)!r} has an empty word",
                "a comma separates two devices", "leave it out, or name another device",
            )  # fmt: skip
        device = find_device(devices, word)
        if device.uuid in found:
            raise PenstockError(f"device {word!r} is named twice", f"it is {device}")
        found[device.uuid] = device
    return list(found.values())
