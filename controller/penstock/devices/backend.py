"""What every kind of device answers, and how a user's word for a device is understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.model import PenstockError, human_memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.devices.inventory import DeviceReport


class DeviceLostError(PenstockError):
    """One device does not answer; the others may."""


@dataclass(frozen=True)
class Device:
    """What quotas are granted of. `uuid` as NVML spells it ("GPU-…", "MIG-…"); None: not told."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    context_bytes: int  # what a process's context takes; an estimate on real devices
    tflops: float | None  # rated dense fp16/bf16 tensor rate
    simulated: bool
    parent: str | None = None  # a MIG instance: its device's UUID
    profile: str | None = None  # ... and its size: "1g.18gb"

    def __str__(self) -> str:
        kind = "simulated " if self.simulated else ""
        return f"{kind}device {self.index} ({self.name}, {human_memory(self.memory_bytes)})"


class DeviceProcess(NamedTuple):
    """A process as the device or its driver sees it, never as a shim reports it."""

    pid: int
    tag: str | None  # the tenant, where the device knows it (simulated)
    memory_bytes: int | None
    peak_memory_bytes: int | None
    busy_ns: int | None  # device time since it began; exact at `at_ns`
    busy_permille: int | None  # recent utilisation, where only that is known
    at_ns: int  # CLOCK_MONOTONIC
    alive: bool


class DeviceLook(NamedTuple):
    """All processes of a device in one instant."""

    at_ns: int  # CLOCK_MONOTONIC
    processes: Sequence[DeviceProcess]
    """As `processes` of a source tells. Who looks again and again is given the same object where
    nothing is new of a process, and the same sequence where nothing is new of any: what was exact
    at their `at_ns` is so still."""


@dataclass(frozen=True)
class Observation:
    """A device with processes as it is now, and what its driver reported since the last look."""

    report: DeviceReport  # its `id` is the device's UUID; a lost one says so in its health
    xids: tuple[int, ...] = ()  # XID errors, those of applications included


@dataclass(frozen=True)
class DriverLibraries:
    """Absolute paths of the driver's libraries below the shim; empty: the shim searches."""

    cuda: str
    nvml: str


class DeviceSource(Protocol):
    """Devices that quotas can be granted of: beside inventory and telemetry, who uses them."""

    @property
    def machine(self) -> Path | None:
        """The simulated machine's file; None for real devices."""

    def devices(self) -> list[Device]:
        """All devices, in index order, those included that are lost now.

        Raises `PenstockError`: none can be asked (a simulated machine's file is gone).
        """

    def observe(self) -> list[Observation]:
        """All devices as they are now, once a second. Never raises: a lost one is told as lost."""

    @property
    def released(self) -> str:
        """Why the driver was let go of; empty: it was not."""

    def release(self, reason: str) -> None:
        """Lets go of the driver, so that it can be unloaded: all devices count as lost from now on.

        May be called again, and from any thread.
        """

    def reopen(self) -> None:
        """Takes the driver up again; devices are found by the looks that follow."""

    def libraries(self) -> DriverLibraries:
        """Where the driver is."""

    def environment(self, tag: str) -> dict[str, str]:
        """What a program needs in its environment to reach these devices."""

    def processes(self, device: Device) -> list[DeviceProcess]:
        """Processes that the device has seen; ended ones too where it remembers them.

        Raises `DeviceLostError`: it does not answer.
        """

    def look(self, device: Device) -> DeviceLook:
        """The same for one who looks again and again; not from several threads at once."""


def find_device(devices: Sequence[Device], word: str) -> Device:
    """The device that `word` means: an index, a UUID or the unique start of a UUID.

    Raises `PenstockError` that lists what there is.
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
    """The devices that comma-separated `words` mean, each once, in the order given."""
    found: dict[str, Device] = {}
    for word in (part.strip() for words_ in words for part in words_.split(",")):
        if not word:
            raise PenstockError(
                f"--device {','.join(words)!r} has an empty word",
                "a comma stands between two devices", "leave it out, or name another device",
            )  # fmt: skip
        device = find_device(devices, word)
        if device.uuid in found:
            raise PenstockError(f"device {word!r} is named twice", f"it is {device}")
        found[device.uuid] = device
    return list(found.values())
