"""Fake device backends: one that reports everything, one that reports next to nothing."""

from __future__ import annotations

import time
from dataclasses import replace

from penstock.devices import (
    Device,
    DeviceLook,
    DeviceLostError,
    DeviceProcess,
    DriverLibraries,
    Observation,
)
from penstock.devices.inventory import Health, NotAvailable, blank
from penstock.model import PenstockError

GIB = 1 << 30
UUID = "GPU-ac0e0000-0000-4000-8000-000000000001"
PART = "GPU-ac0e0000-0000-4000-8000-000000000002"


class BareDevices:
    """One device, of which nothing is known but its UUID, its memory and its processes.

    It fails in each way that the protocol allows: `is_gone`, `is_lost` and `release`.
    """

    machine = None

    def __init__(self, reports: dict[str, int | None] | None = None) -> None:
        self.reports = reports or {}  # of each process
        self.users: list[int] = []  # by pid
        self.is_gone = False  # no device can be queried
        self.lost: set[str] = set()  # UUIDs of devices that do not respond
        self.released = ""

    def devices(self) -> list[Device]:
        if self.is_gone:
            raise PenstockError("no device can be queried", "its driver is gone", "load it")
        return [Device(0, UUID, "Acme", 64 * GIB, 1 << 28, tflops=None, simulated=False)]

    def why_lost(self, uuid: str) -> str:
        """Empty: it responds."""
        return self.released or ("it fell off" if uuid in self.lost else "")

    def observe(self) -> list[Observation]:
        lacking = NotAvailable("its driver does not report it")
        report = blank("amd", 0, UUID, "Acme", lacking)
        if why := self.why_lost(UUID):
            report = replace(report, health=Health("lost", why))
        return [Observation(report)]

    def release(self, reason: str) -> None:
        self.released = reason

    def reopen(self) -> None:
        self.released = ""

    def libraries(self) -> DriverLibraries:
        return DriverLibraries("", "")

    def environment(self, tag: str) -> dict[str, str]:
        return {}

    def processes(self, device: Device) -> list[DeviceProcess]:
        if why := self.why_lost(device.uuid):
            raise DeviceLostError(f"{device} is lost", why, "reset it")
        known = dict.fromkeys(("peak_memory_bytes", "busy_ns", "busy_permille", "memory_bytes"))
        fields = {**known, **self.reports, "at_ns": time.monotonic_ns(), "alive": True}
        return [DeviceProcess(pid=pid, tag=None, **fields) for pid in self.users]

    def look(self, device: Device) -> DeviceLook:
        return DeviceLook(time.monotonic_ns(), self.processes(device))


class WholeDevices(BareDevices):
    """A device and a partition of another, of which everything is reported."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: tuple[int, ...] = ()
        self.health = Health("ok")
        self.tag = "t"
        self.used = UUID  # the device that the processes use
        self._last: dict[str, list[DeviceProcess]] = {}

    def devices(self) -> list[Device]:
        super().devices()
        part = {"parent": "GPU-ac0e0000-0000-4000-8000-00000000000f", "profile": "1g.16gb"}
        return [
            Device(0, UUID, "Acme", 64 * GIB, 1 << 28, tflops=400.0, simulated=False),
            Device(1, PART, "Acme", 16 * GIB, 1 << 28, tflops=50.0, simulated=False, **part),
        ]

    def observe(self) -> list[Observation]:
        codes, self.codes = self.codes, ()
        return [Observation(self._report(device), codes) for device in self.devices()]

    def _report(self, device: Device):
        why = self.why_lost(device.uuid)
        return replace(
            blank("nvidia", device.index, device.uuid, device.name, NotAvailable("")),
            bus_id=f"0000:0{device.index}:00.0", architecture="Anvil", driver_version="1.2",
            memory_total_bytes=device.memory_bytes, memory_used_bytes=GIB, busy_permille=300,
            temperature_celsius=40, power_milliwatts=70_000, parent=device.parent,
            profile=device.profile, health=Health("lost", why) if why else self.health,
        )  # fmt: skip

    def libraries(self) -> DriverLibraries:
        return DriverLibraries("/opt/acme/libcuda.so.1", "/opt/acme/libnvidia-ml.so.1")

    def environment(self, tag: str) -> dict[str, str]:
        return {"ACME_TAG": tag}

    def processes(self, device: Device) -> list[DeviceProcess]:
        values = {"memory_bytes": GIB, "peak_memory_bytes": GIB, "busy_ns": 0, "busy_permille": 0}
        self.reports = {**values, **self.reports}
        found = super().processes(device)
        return [one._replace(tag=self.tag) for one in found if device.uuid == self.used]

    def look(self, device: Device) -> DeviceLook:
        """Returns the same objects while nothing has changed, as the protocol requires."""
        now = self.processes(device)
        last = self._last.get(device.uuid, [])
        if [one._replace(at_ns=0) for one in now] != [one._replace(at_ns=0) for one in last]:
            self._last[device.uuid] = now
        return DeviceLook(time.monotonic_ns(), self._last.setdefault(device.uuid, now))
