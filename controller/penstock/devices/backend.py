"""The device backend protocol, and lookup of devices by index or UUID.

A backend for another vendor fills `DeviceBackend` in a module of `backends/`, and `open` finds it.
It must report, for each device: a UUID that is stable over restarts and reboots (spelled
"GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", as the quota page holds its 16 bytes), its memory, and
the processes that use it, by host pid. Everything else may be "not reported" (None): rated TFLOPS,
the memory and device time of a single process, utilisation. Without the memory of a process,
enforcement cannot see a program that bypasses the shim; without its device time or utilisation it
judges memory alone.

Vendors' words (XID, MIG, NVML) stay in the backend: error codes are numbers here, and a partition
is a device that names its parent.
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
    """One device does not respond; the others may."""


@dataclass(frozen=True)
class Device:
    """A device that can be shared. None: not reported."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    context_bytes: int  # memory of a process's context; an estimate on real devices
    tflops: float | None  # rated dense fp16/bf16 tensor rate
    simulated: bool
    parent: str | None = None  # of a partition: UUID of the whole device
    profile: str | None = None  # of a partition: its size, in the vendor's words

    def __str__(self) -> str:
        kind = "simulated " if self.simulated else ""
        return f"{kind}device {self.index} ({self.name}, {human_memory(self.memory_bytes)})"


class DeviceProcess(NamedTuple):
    """A process as the device or its driver reports it, never as a shim does."""

    pid: int
    tag: str | None  # the tenant, if the device knows it (simulated)
    memory_bytes: int | None
    peak_memory_bytes: int | None
    busy_ns: int | None  # device time since it began; exact at `at_ns`
    busy_permille: int | None  # recent utilisation, if only that is known
    at_ns: int  # CLOCK_MONOTONIC
    alive: bool


class DeviceLook(NamedTuple):
    """All processes of a device at one instant."""

    at_ns: int  # CLOCK_MONOTONIC
    processes: Sequence[DeviceProcess]
    """As returned by `DeviceBackend.processes`. Repeated calls of `look` return the same object for
    a process that has not changed, and the same sequence if none has: values that were exact at
    their `at_ns` still are."""


@dataclass(frozen=True)
class Observation:
    """The present state of a device, and what its driver has reported since the last one."""

    report: DeviceReport  # its `id` is the device's UUID; its health says if the device is lost
    error_codes: tuple[int, ...] = ()  # as the vendor numbers them, also those of applications


@dataclass(frozen=True)
class DriverLibraries:
    """Absolute paths of the driver libraries that the shim calls; empty: the shim searches."""

    driver: str  # through which programs compute
    management: str  # through which tools read a device's state


class DeviceBackend(Protocol):
    """A source of devices that can be shared: inventory, telemetry and their processes."""

    @property
    def machine(self) -> Path | None:
        """The simulated machine's file; None for real devices."""

    def devices(self) -> list[Device]:
        """All devices, in index order, lost ones included.

        Raises `PenstockError` if none can be queried (a simulated machine's file is gone).
        """

    def observe(self) -> list[Observation]:
        """The present state of all devices; call it once a second. Never raises for a lost one."""

    @property
    def released(self) -> str:
        """Why the driver was released; empty: it was not."""

    def release(self, reason: str) -> None:
        """Releases the driver, so that it can be unloaded: all devices count as lost from now on.

        May be called again. Thread-safe.
        """

    def reopen(self) -> None:
        """Reopens the driver; later calls of `observe` find the devices."""

    def libraries(self) -> DriverLibraries:
        """The paths of the driver's libraries."""

    def environment(self, tag: str) -> dict[str, str]:
        """The environment variables that a program needs to reach these devices."""

    def processes(self, device: Device) -> list[DeviceProcess]:
        """Processes that the device has seen, ended ones included if it keeps them.

        Raises `DeviceLostError` if the device does not respond.
        """

    def look(self, device: Device) -> DeviceLook:
        """Like `processes`, for repeated sampling; not from several threads at once."""


def find_device(devices: Sequence[Device], word: str) -> Device:
    """The device that `word` names: an index, a UUID or a unique prefix of a UUID.

    Raises `PenstockError`, which lists the devices.
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
    """The devices that comma-separated `words` name, each once, in that order."""
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
