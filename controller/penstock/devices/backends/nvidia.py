"""NVIDIA device backend through NVML: a MIG instance is a device, a GPU in MIG mode is not."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
from pathlib import Path
from typing import Any

import pynvml

from penstock.devices.backend import (
    Device,
    DeviceLook,
    DeviceLostError,
    DeviceProcess,
    DriverLibraries,
    Observation,
)
from penstock.devices.backends.nvml import XidEvents, is_lost, memory_of, reopen, told, unload
from penstock.devices.backends.nvml_report import (
    mig_instances,
    profile_of,
    recovery_action,
    report_of,
)
from penstock.devices.backends.xid_health import HealthWatch, Signs
from penstock.devices.inventory import DeviceReport, Health, NotAvailable, blank, known
from penstock.devices.models import model_of
from penstock.model import PenstockError

USE_SIMULATION = "install the NVIDIA driver, or run on the simulated GPU with --simulate h200"
REOPEN_NS = 10_000_000_000  # between reopenings of NVML for a lost device, which delay others


@dataclasses.dataclass
class _Known:
    """A device that was found when the backend was created."""

    device: Device
    report: DeviceReport  # the last report
    handle: Any  # None if the device is lost
    whole: str  # UUID of the board, whose events and health apply
    lost: str = ""  # NVML's error, if the device is lost


class NvidiaDevices:
    """The machine's NVIDIA GPUs as found at construction, and their state.

    When a lost device or an unloaded driver comes back, it is found automatically. Thread-safe.

    Raises:
        PenstockError: there is no driver or no device.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._events = XidEvents()
        self._watches: dict[str, HealthWatch] = {}  # by the board's UUID
        self._boards: dict[str, Any] = {}  # handles of whole devices; None if lost
        self._reopened_ns = 0
        self._released = ""  # why the driver was released
        self.unanswered: list[str] = []
        """Devices that NVML counts but that did not respond at the start, and are left out."""
        try:
            pynvml.nvmlInit()
            self._known = self._list()
        except pynvml.NVMLError as error:
            raise PenstockError(
                "no NVIDIA driver on this machine", str(error), USE_SIMULATION
            ) from error
        if not self._known:
            raise PenstockError(
                "no NVIDIA device on this machine",
                "; ".join(self.unanswered) or "the driver lists none",
                USE_SIMULATION,
            )
        self._events.register(self._boards)

    @property
    def machine(self) -> Path | None:
        """Real devices have no machine file."""
        return None

    def devices(self) -> list[Device]:
        """All GPUs in NVML's order, then MIG instances, without the GPUs in MIG mode themselves."""
        return [one.device for one in self._known]

    def boards(self) -> list[DeviceReport]:
        """GPUs in MIG mode, of which only the instances are granted."""
        with self._lock:
            whole = {one.whole for one in self._known if one.device.parent}
            found = []
            for index, (uuid, handle) in enumerate(self._boards.items()):
                if uuid in whole and handle is not None:
                    with contextlib.suppress(pynvml.NVMLError):
                        report = report_of(handle, index)
                        health = next(o.report.health for o in self._known if o.whole == uuid)
                        found.append(dataclasses.replace(report, health=health))
            return found

    def libraries(self) -> DriverLibraries:
        """The paths of this process's NVML and of the driver's libcuda in the same directory."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
        match = re.search(r"\s(/\S*/libnvidia-ml\.so\S*)$", maps, re.MULTILINE)
        if match is None:
            return DriverLibraries("", "")
        cuda = Path(match[1]).with_name("libcuda.so.1")
        return DriverLibraries(str(cuda) if cuda.exists() else "", match[1])

    def environment(self, tag: str) -> dict[str, str]:  # noqa: ARG002 - the device knows no tags
        """No variables, because programs find the driver as usual."""
        return {}

    def processes(self, device: Device) -> list[DeviceProcess]:
        """Processes that have a context, with their memory and recent utilisation if known.

        Raises:
            DeviceLostError: the device does not respond.
        """
        with self._lock:
            one = next((one for one in self._known if one.device.uuid == device.uuid), None)
            if one is None or one.handle is None:
                why = one.lost if one else "the driver lists no such device"
                raise DeviceLostError(f"{device} is lost", why)
            now_ns = time.monotonic_ns()
            try:
                busy = None if device.parent else _utilisation(one.handle)
                running = told(pynvml.nvmlDeviceGetComputeRunningProcesses, one.handle)
            except pynvml.NVMLError as error:
                raise DeviceLostError(f"{device} is lost", str(error)) from error
        if isinstance(running, NotAvailable):
            return []  # not reported (some virtual machines, some permissions): not an error
        return [
            DeviceProcess(
                pid=int(process.pid),
                tag=None,
                memory_bytes=None if process.usedGpuMemory is None else int(process.usedGpuMemory),
                peak_memory_bytes=None,
                busy_ns=None,
                # A process without a sample was idle. None means that the driver takes no samples.
                busy_permille=None if busy is None else busy.get(int(process.pid), 0),
                at_ns=now_ns,
                alive=True,
            )
            for process in running
        ]

    def look(self, device: Device) -> DeviceLook:
        """`processes` with the time; see `DeviceBackend`."""
        found = self.processes(device)
        return DeviceLook(time.monotonic_ns(), found)

    def observe(self) -> list[Observation]:
        """The current state of all devices, with the driver's reports since the last call."""
        with self._lock:
            now_ns = time.monotonic_ns()
            xids = self._events.read()  # first, because finding devices again resets the events
            self._find_again(now_ns)
            signs = {uuid: self._signs(uuid, xids.get(uuid, [])) for uuid in self._boards}
            health = {
                uuid: self._watches.setdefault(uuid, HealthWatch()).look(now_ns, one)
                for uuid, one in signs.items()
            }
            return [
                Observation(self._report(one, health[one.whole]), tuple(xids.get(one.whole, ())))
                for one in self._known
            ]

    def release(self, reason: str) -> None:
        """Closes and unloads NVML, so that no file of the driver remains open or mapped."""
        with self._lock:
            self._released = reason
            self._events.close()
            unload()
            for uuid in self._boards:
                self._lose(uuid, reason)

    def reopen(self) -> None:
        """Looks for the driver again, using the library that is installed at that time."""
        with self._lock:
            self._released = ""
            self._reopened_ns = 0

    @property
    def released(self) -> str:
        """Why the driver was released; empty if it was not."""
        return self._released

    def close(self) -> None:
        """Closes the driver."""
        with self._lock:
            self._events.close()
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _list(self) -> list[_Known]:
        """Lists devices. Raises pynvml.NVMLError if they cannot be counted, or one is lost now."""
        found: list[_Known] = []
        parts: list[tuple[Any, Any]] = []
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                instances = mig_instances(handle)
                if not instances:
                    found.append(_met(handle, index))
            except pynvml.NVMLError as error:
                self.unanswered.append(f"device {index}: {error}")
                continue
            self._boards[str(pynvml.nvmlDeviceGetUUID(handle))] = handle
            parts += [(instance, handle) for instance in instances]
        found += [_met(part, count + n, whole) for n, (part, whole) in enumerate(parts)]
        return found

    def _signs(self, uuid: str, xids: list[int]) -> Signs:
        handle = self._boards[uuid]
        if handle is None:
            lost = next((one.lost for one in self._known if one.whole == uuid), "it is gone")
            return Signs(lost=lost, xids=xids)
        try:
            memory_of(handle)
            energy = known(told(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle))
            return Signs(None, xids, recovery_action(handle), energy)
        except pynvml.NVMLError as error:
            self._lose(uuid, str(error))
            return Signs(lost=str(error), xids=xids)

    def _lose(self, whole: str, why: str) -> None:
        self._boards[whole] = None
        for one in self._known:
            if one.whole == whole:
                one.handle, one.lost = None, why

    def _report(self, one: _Known, health: Health) -> DeviceReport:
        if one.handle is not None:
            try:
                parent = self._boards[one.whole] if one.device.parent else None
                report = report_of(one.handle, one.device.index, parent)
                one.report = dataclasses.replace(report, health=health)
                return one.report  # noqa: TRY300
            except pynvml.NVMLError as error:
                one.handle, one.lost = None, str(error)
        if health.state != "lost":  # the MIG instance was destroyed
            health = Health("lost", one.lost)
        return _lost(one.report, health)

    def _find_again(self, now_ns: int) -> None:
        """Checks whether lost devices respond again."""
        if self._released:
            return
        missing = [one for one in self._known if one.handle is None]
        away = [uuid for uuid, handle in self._boards.items() if handle is None]
        everything = len(away) == len(self._boards)
        if away and (everything or now_ns - self._reopened_ns >= REOPEN_NS):
            self._reopened_ns = now_ns
            self._events.close()
            try:
                reopen()
            except (pynvml.NVMLError, OSError) as error:
                for uuid in self._boards:
                    self._lose(uuid, str(error))
                return
            self._boards = dict.fromkeys(self._boards)
            missing = self._known  # all handles belong to the old library
        for one in missing:
            if self._boards[one.whole] is None:
                self._boards[one.whole] = _handle_of(one.whole)
            one.handle = _handle_of(one.device.uuid)
            if one.handle is None and not one.lost:
                one.lost = "NVML no longer finds it"
        back = {uuid: handle for uuid, handle in self._boards.items() if handle is not None}
        if away and back.keys() & set(away):
            self._events.register(back)


def _met(handle: Any, index: int, parent: Any = None) -> _Known:  # noqa: ANN401
    report = report_of(handle, index, parent)
    model = model_of(report.model)
    device = Device(
        index=index,
        uuid=report.id,
        name=report.model,
        memory_bytes=known(report.memory_total_bytes) or 0,
        context_bytes=model.context_bytes,
        tflops=model.tflops if parent is None else None,
        simulated=False,
        parent=report.parent,
        profile=None if parent is None else profile_of(handle),
    )
    return _Known(device, report, handle, whole=report.parent or report.id)


def _handle_of(uuid: str) -> Any:  # noqa: ANN401
    """The handle of a device; None if the device does not respond."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        memory_of(handle)
    except pynvml.NVMLError:
        return None
    return handle


def _lost(last: DeviceReport, health: Health) -> DeviceReport:
    """The report of a lost device, with only the values that do not change."""
    lacking = NotAvailable(f"the device does not answer: {health.reason}")
    return dataclasses.replace(
        blank(last.kind, last.index, last.id, last.model, lacking),
        bus_id=last.bus_id,
        architecture=last.architecture,
        memory_total_bytes=last.memory_total_bytes,
        health=health,
        simulated=last.simulated,
        parent=last.parent,
        profile=last.profile,
        attributes=last.attributes,
    )


def _utilisation(handle: Any) -> dict[int, int] | None:  # noqa: ANN401
    """Utilisation in permille by pid: the mean of the driver's samples of the last second.

    None if it is not reported, as in some virtual machines.

    Raises:
        pynvml.NVMLError: the device is lost.
    """
    since_us = time.time_ns() // 1000 - 1_000_000
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError_NotFound:
        return {}  # no process was busy
    except pynvml.NVMLError as error:
        if is_lost(error):
            raise
        return None
    by_pid: dict[int, list[int]] = {}
    for sample in samples:
        by_pid.setdefault(int(sample.pid), []).append(int(sample.smUtil) * 10)
    return {pid: sum(values) // len(values) for pid, values in by_pid.items()}
