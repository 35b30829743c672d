"""Simulated device backend, which reads the machine file of `penstock_shim.simulator`."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from penstock.devices.backend import (
    Device,
    DeviceLook,
    DeviceLostError,
    DeviceProcess,
    DriverLibraries,
    Observation,
)
from penstock.devices.backends.xid_health import HealthWatch, Signs
from penstock.devices.host_pids import HostPids
from penstock.devices.inventory import DeviceReport, Figure, Health, NotAvailable, blank
from penstock.model import PenstockError
from penstock_shim import paths, simulator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


NOT_TOLD = NotAvailable(
    "the simulated machine does not record it",
    "its NVML reports a modelled value: penstock simulate PROFILE -- penstock devices",
)
RECENT_NS = 1_000_000_000  # the time over which the device samples its utilisation


class SimulatedDevices:
    """The devices of an existing simulated machine."""

    def __init__(self, machine: Path) -> None:
        self._path = machine
        self._machine = simulator.Machine(machine)
        self._pids: dict[int, HostPids] = {}  # by device
        self._seen: dict[int, _Seen] = {}  # by device, for repeated sampling
        self._watches: dict[str, HealthWatch] = {}
        self._xids_seen: dict[str, int] = {}
        self._last: dict[str, DeviceReport] = {}
        self._released = ""

    @property
    def machine(self) -> Path | None:
        """The machine's file."""
        return self._path

    def devices(self) -> list[Device]:
        """All devices of the machine."""
        try:
            devices = self._machine.devices()
        except simulator.MachineError as error:  # truncated meanwhile
            raise PenstockError("cannot query the simulated devices", str(error)) from error
        return [
            Device(
                index=device.index,
                uuid=device.uuid,
                name=device.name,
                memory_bytes=device.memory_bytes,
                context_bytes=device.context_bytes,
                tflops=device.tflops or None,
                simulated=True,
            )
            for device in devices
        ]

    @property
    def released(self) -> str:
        """Why the driver was released; empty if it was not."""
        return self._released

    def release(self, reason: str) -> None:
        """Marks all devices as lost. The machine's file stays mapped: no module needs unloading."""
        self._released = reason

    def reopen(self) -> None:
        """Makes the devices available again."""
        self._released = ""

    def libraries(self) -> DriverLibraries:
        """The simulated driver's libraries."""
        folder = paths.sim_dir()
        return DriverLibraries(str(folder / "libcuda.so.1"), str(folder / "libnvidia-ml.so.1"))

    def environment(self, tag: str) -> dict[str, str]:
        """Variables that connect a program to this machine and tag it in the device's record."""
        return simulator.environment(self._path, tag)

    def processes(self, device: Device) -> list[DeviceProcess]:
        """The device's own record of every process that it has seen.

        Pids are in this process's namespace. The pid is 0 if a process ended in another pid
        namespace, or runs in a pid namespace that is hidden.

        Raises:
            DeviceLostError: the device is lost.
        """
        with self._asking(device):
            records = self._machine.record(device.index)
        pids = self._pids.setdefault(device.index, HostPids()).of(records)
        return [_process(record, pid) for record, pid in zip(records, pids, strict=True)]

    def look(self, device: Device) -> DeviceLook:
        """`processes` with the time; see `DeviceBackend`."""
        seen = self._seen.get(device.index)
        if seen is None:
            seen = _Seen(simulator.RecordReader(self._machine, device.index))
            self._seen[device.index] = seen
        with self._asking(device):
            return seen.look()

    @contextlib.contextmanager
    def _asking(self, device: Device) -> Iterator[None]:
        if self._released:
            raise DeviceLostError(f"{device} is lost", self._released)
        try:
            if self._machine.is_lost(device.index):
                raise DeviceLostError(f"{device} is lost", "the GPU is lost")
            yield
        except simulator.MachineError as error:  # truncated meanwhile
            raise PenstockError("cannot query the simulated device", str(error)) from error

    def observe(self) -> list[Observation]:
        """The current state of all devices, with XID errors reported since the last call."""
        try:
            return [self._observation(device) for device in self._machine.devices()]
        except simulator.MachineError as error:  # truncated meanwhile
            health = Health("lost", str(error))
            return [Observation(_lost(last, health)) for last in self._last.values()]

    def _observation(self, device: simulator.Device) -> Observation:
        seen = self._xids_seen.get(device.uuid, device.xid_count)
        self._xids_seen[device.uuid] = device.xid_count
        xids = device.xids[max(0, len(device.xids) - (device.xid_count - seen)) :]
        lost = self._released or ("the GPU is lost" if device.lost else None)
        signs = Signs(
            lost=lost,
            xids=xids,
            action="a GPU reset" if device.wants_reset else "",
        )
        watch = self._watches.setdefault(device.uuid, HealthWatch())
        health = watch.look(time.monotonic_ns(), signs)
        report = self._report(device, health)
        self._last[device.uuid] = report
        return Observation(_lost(report, health) if lost else report, xids)

    def _report(self, device: simulator.Device, health: Health) -> DeviceReport:
        usage = self._machine.usage(device.index)
        major, minor = device.compute_capability
        attributes = {"compute_capability": f"{major}.{minor}"}
        if device.mig:
            attributes["mig"] = ",".join(one.profile for one in device.mig)
        return dataclasses.replace(
            blank("simulated", device.index, device.uuid, device.name, NOT_TOLD),
            memory_total_bytes=usage.memory_total_bytes,
            memory_used_bytes=usage.memory_used_bytes,
            busy_permille=self._busy(device.index),
            health=health,
            simulated=True,
            attributes=attributes,
        )

    def _busy(self, index: int) -> Figure[int]:
        samples = self._machine.samples(index)
        if len(samples) < 2:
            return NotAvailable("the device has taken no samples yet")
        last = samples[-1]
        recent = [one for one in samples[:-1] if one.at_ns >= last.at_ns - RECENT_NS]
        first = recent[0] if recent else samples[-2]
        return (last.busy_ns - first.busy_ns) * 1000 // max(1, last.at_ns - first.at_ns)


class _Seen:
    """The result of the last sample of a device."""

    def __init__(self, reader: simulator.RecordReader) -> None:
        self._reader = reader
        self._pids = HostPids()
        self._records: list[simulator.ProcessRecord] = []
        self._processes: list[DeviceProcess] = []
        self._translated = False  # whether all live processes' pids are known; they stay valid

    def look(self) -> DeviceLook:
        at_ns, records = self._reader.read()
        if records is self._records and self._translated:
            return DeviceLook(at_ns, self._processes)
        known = {
            (id(record), process.pid): process
            for record, process in zip(self._records, self._processes, strict=True)
        }
        pids = self._pids.of(records)
        self._processes = [
            known.get((id(record), pid)) or _process(record, pid)
            for record, pid in zip(records, pids, strict=True)
        ]
        self._records = records
        self._translated = all(one.pid for one in self._processes if one.alive)
        return DeviceLook(at_ns, self._processes)


def _process(record: simulator.ProcessRecord, pid: int) -> DeviceProcess:
    return DeviceProcess(
        pid=pid,
        tag=record.tag,
        memory_bytes=record.memory_bytes,
        peak_memory_bytes=record.peak_memory_bytes,
        busy_ns=record.busy_ns,
        busy_permille=None,
        at_ns=record.at_ns,
        alive=record.alive,
    )


def _lost(last: DeviceReport, health: Health) -> DeviceReport:
    lacking = NotAvailable(f"the device does not answer: {health.reason}")
    return dataclasses.replace(
        last, memory_used_bytes=lacking, busy_permille=lacking, health=health
    )
