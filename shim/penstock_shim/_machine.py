"""An open simulated machine: its devices, the record of their work, and fault injection."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from ._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ._native import CData

FaultKind = Literal["out-of-memory", "launch-failed", "device-lost", "slow", "hang"]

_FAULTS: dict[str, int] = {
    "out-of-memory": lib.SIM_FAULT_OUT_OF_MEMORY,
    "launch-failed": lib.SIM_FAULT_LAUNCH_FAILED,
    "device-lost": lib.SIM_FAULT_DEVICE_LOST,
    "slow": lib.SIM_FAULT_SLOW,
    "hang": lib.SIM_FAULT_HANG,
}


class MachineError(RuntimeError):
    """Error for a machine file that cannot be created, opened or used."""


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance of a device, which NVML lists but on which no work runs."""

    profile: str  # such as "1g.18gb"
    memory_bytes: int
    slices: int  # number of slices, out of seven
    sm_count: int  # estimated number of multiprocessors


@dataclass(frozen=True)
class Device:
    """A simulated device: its fixed properties and its current state."""

    index: int
    uuid: str  # "GPU-…" as in NVML; fixed by kind, index and place of the device
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    sm_count: int
    max_threads_per_sm: int
    tflops: float  # rated dense fp16/bf16 tensor performance
    context_bytes: int  # device memory of a process's context
    time_slice_ns: int
    sample_period_ns: int
    lost: bool  # whether a device-lost fault was injected
    wants_reset: bool  # whether an XID error needs a reset; `lift` counts as one
    xid_count: int  # number of XID errors ever reported
    xids: tuple[int, ...]  # the newest XID errors, oldest first
    mig: tuple[MigInstance, ...]  # empty if MIG is off


class ProcessRecord(NamedTuple):
    """What one process, possibly ended, did on one device since the machine was created."""

    device: int
    at_ns: int  # CLOCK_MONOTONIC; all values are exact at this time
    pid: int  # in the process's own pid namespace
    pid_namespace: int  # inode of that namespace, 0 if unknown
    alive: bool
    tag: str  # PENSTOCK_SIM_TAG of the process, or else its comm
    command: str
    began_ns: int
    ended_ns: int  # 0 while alive
    busy_ns: int  # device time of its kernels: the union over its streams
    copy_ns: int
    memory_bytes: int  # current memory, including contexts; 0 after the process ended
    peak_memory_bytes: int
    launches: int
    copies: int
    pending: int  # operations submitted but not completed
    refused: int  # allocations refused because device memory was short
    calls: int  # driver calls while the process had a context here


@dataclass(frozen=True)
class DeviceUsage:
    """Usage of a whole device since the machine was created."""

    device: int
    at_ns: int  # CLOCK_MONOTONIC; all values are exact at this time
    created_ns: int
    busy_ns: int
    copy_ns: int
    switch_ns: int  # time spent on context switches
    switches: int
    memory_used_bytes: int
    memory_total_bytes: int
    processes: int  # number of living processes with a context
    computing: int  # number of those with kernels waiting or running


@dataclass(frozen=True)
class Sample:
    """Running totals at one of the device's sample times."""

    at_ns: int
    busy_ns: int
    memory_busy_ns: int  # device memory traffic, as time at full bandwidth
    memory_bytes: int


class Machine:
    """An open simulated machine. Close it, or use it as a context manager."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the machine at `path`.

        Raises:
            MachineError: the file does not exist or is not a machine.
        """
        self.path = Path(path).absolute()
        error = ffi.new("char[]", lib.SIM_ERROR_BYTES)
        self._machine = lib.sim_machine_open(os.fsencode(self.path), error)
        if self._machine == ffi.NULL:
            raise MachineError(text(error))
        self._file = _identity(self.path)

    def __enter__(self) -> Machine:  # noqa: PYI034  typing.Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the machine; the file stays. A second call does nothing."""
        if self._machine != ffi.NULL:
            lib.sim_machine_close(self._machine)
            self._machine = ffi.NULL

    def devices(self) -> list[Device]:
        """Return the devices in the order of their indexes."""
        return [_device(info) for info in self._infos()]

    def is_lost(self, device: int = 0) -> bool:
        """Return whether a device-lost fault was injected.

        Raises:
            IndexError: there is no such device.
        """
        return bool(self._info(self._checked(device)).lost)

    def usage(self, device: int = 0) -> DeviceUsage:
        """Return the usage of the whole device so far.

        Raises:
            IndexError: no such device.
        """
        usage = ffi.new("sim_device_usage *")
        lib.sim_machine_usage(self._open(), self._checked(device), usage)
        return DeviceUsage(
            device=device,
            at_ns=usage.at_ns,
            created_ns=usage.created_ns,
            busy_ns=usage.busy_ns,
            copy_ns=usage.copy_ns,
            switch_ns=usage.switch_ns,
            switches=usage.switches,
            memory_used_bytes=usage.memory_used_bytes,
            memory_total_bytes=usage.memory_total_bytes,
            processes=usage.processes,
            computing=usage.computing,
        )

    def record(self, device: int | None = None) -> list[ProcessRecord]:
        """Return the exact records of every process on one device, or by default on all devices.

        All values of a device are taken at the same instant.

        Raises:
            IndexError: there is no such device.
        """
        indices = range(len(self)) if device is None else [self._checked(device)]
        return [record for index in indices for record in self._record(index)]

    def samples(self, device: int = 0, pid: int = 0) -> list[Sample]:
        """Return the last utilisation samples of a device or of a living process, oldest first.

        Raises:
            IndexError: there is no such device.
        """
        samples = ffi.new("sim_sample[]", lib.SIM_SAMPLES)
        count = lib.sim_machine_samples(
            self._open(), self._checked(device), pid, samples, lib.SIM_SAMPLES
        )
        return [
            Sample(s.at_ns, s.busy_ns, s.memory_busy_ns, s.memory_bytes) for s in samples[0:count]
        ]

    def inject(
        self,
        kind: FaultKind,
        *,
        device: int = 0,
        pid: int = 0,
        skip: int = 0,
        count: int = 0,
        delay_ns: int = 0,
        call: str = "",
    ) -> None:
        """Inject a fault into the device.

        Args:
            kind: Kind of fault.
            device: Index of the device.
            pid: Process that the fault affects, 0 for any process.
            skip: Number of calls to spare first.
            count: Number of calls to affect, 0 for all until `lift`.
            delay_ns: For ``slow``, the time by which driver calls are delayed.
            call: Glob for the base name of the driver function; if empty, the fault affects every
                function that its kind applies to.

        Raises:
            IndexError: there is no such device.
            MachineError: the machine rejected the fault.
        """
        if kind not in get_args(FaultKind):
            raise MachineError(f"{kind!r} is not a fault (valid: {', '.join(get_args(FaultKind))})")
        fault = ffi.new("sim_fault *")
        fault.kind, fault.pid, fault.skip, fault.count = _FAULTS[kind], pid, skip, count
        fault.value_ns = delay_ns
        put(fault, "call", call, lib.SIM_TAG_BYTES)
        self._inject(device, fault)

    def lift(self, device: int = 0) -> None:
        """End every fault of the device. Raises IndexError if there is no such device."""
        self._inject(device, ffi.new("sim_fault *"))

    def report_xid(self, xid: int, *, device: int = 0) -> None:
        """Make the driver report XID error `xid` for the device (see `Device.wants_reset`).

        Raises:
            IndexError: there is no such device.
        """
        lib.sim_machine_report_xid(self._open(), self._checked(device), xid)

    def shift_clock(self, ns: int, *, device: int = 0) -> None:
        """Advance the device's clock by `ns` in one step, to simulate a long drift.

        Raises:
            IndexError: there is no such device.
        """
        lib.sim_machine_shift_clock(self._open(), self._checked(device), ns)

    def set_mig(self, instances: Sequence[MigInstance], *, device: int = 0) -> None:
        """Divide the device into at most seven MIG instances. An empty list turns MIG off.

        Raises:
            IndexError: no such device.
            MachineError: a process uses the device, or there are too many instances.
        """
        raw = ffi.new("sim_mig[]", max(1, len(instances)))
        for place, one in zip(raw, instances, strict=False):
            put(place, "profile", one.profile, lib.SIM_MIG_NAME_BYTES)
            place.memory_bytes, place.slices = one.memory_bytes, one.slices
            place.sm_count = one.sm_count
        checked = self._checked(device)
        if lib.sim_machine_set_mig(self._open(), checked, raw, len(instances)) < 0:
            raise MachineError(
                f"device {device} of {self.path} cannot be divided: a process uses it, or there "
                f"are more than {lib.SIM_MIG_INSTANCES} instances"
            )

    def __len__(self) -> int:
        return int(lib.sim_machine_device_count(self._open()))

    def _inject(self, device: int, fault: CData) -> None:
        if lib.sim_machine_inject(self._open(), self._checked(device), fault) < 0:
            raise MachineError(
                f"the fault could not be injected into device {device} of {self.path}"
            )

    def _record(self, device: int) -> Iterator[ProcessRecord]:
        at_ns, room, count = self.raw_record(device, ffi.new("sim_process_record[]", 256))
        for number in range(count):
            yield _process(device, at_ns, room[number])

    def raw_record(self, device: int, room: CData) -> tuple[int, CData, int]:
        """Return the time, the device's raw records, and their number.

        The records are in `room`, or in a larger buffer if `room` is too small.

        Raises:
            IndexError: there is no such device.
        """
        at_ns = ffi.new("uint64_t *")
        checked = self._checked(device)
        while True:
            count = lib.sim_machine_record(self._open(), checked, room, len(room), at_ns)
            if count <= len(room):
                return at_ns[0], room, max(count, 0)
            room = ffi.new("sim_process_record[]", 2 * count)

    def _info(self, device: int) -> CData:
        info = ffi.new("sim_device_info *")
        lib.sim_machine_device(self._open(), device, info)
        return info

    def _infos(self) -> Iterator[CData]:
        for index in range(len(self)):
            yield self._info(index)

    def has_devices_of(self, other: Machine) -> bool:
        """Return whether both machines have the same devices by number and profile."""
        return self._fingerprint() == other._fingerprint()

    def _fingerprint(self) -> list[bytes]:
        found = []
        for info in self._infos():
            profile = ffi.new("sim_profile *", info.profile)
            profile.place = 0
            found.append(bytes(ffi.buffer(profile)))
        return found

    def summary(self) -> str:
        """Return a short description of the devices, such as "2 x NVIDIA H200"."""
        names = [device.name for device in self.devices()]
        kinds = dict.fromkeys(names)
        return ", ".join(f"{names.count(kind)} x {kind}" for kind in kinds)

    def _open(self) -> CData:
        if self._machine == ffi.NULL:
            raise MachineError(f"the simulated machine {self.path} was closed")
        self._check_file()
        return self._machine

    def _check_file(self) -> None:
        """Raise `MachineError` if the file was truncated, because reading it would raise SIGBUS."""
        now = _identity(self.path)  # if the file was removed or replaced, the mapping stays valid
        if now[:2] == self._file[:2] and now[2] < self._file[2]:
            raise MachineError(f"the simulated machine {self.path} was truncated; create it again")

    def _checked(self, device: int) -> int:
        if not 0 <= device < len(self):
            raise IndexError(f"{self.path} has devices 0 to {len(self) - 1}, not {device}")
        return device


class RecordReader:
    """Reader of one device's record, which reuses the objects of unchanged entries."""

    def __init__(self, machine: Machine, device: int) -> None:
        self._machine = machine
        self._device = device
        self._room: CData = ffi.new("sim_process_record[]", 256)
        self._raw = b""
        self._records: list[ProcessRecord] = []

    def read(self) -> tuple[int, list[ProcessRecord]]:
        """Return the time and all records.

        An unchanged record is the same object as before, with its old time. If all records are
        unchanged, the list is the same object too.
        """
        at_ns, self._room, count = self._machine.raw_record(self._device, self._room)
        raw = bytes(ffi.buffer(self._room, count * ffi.sizeof("sim_process_record")))
        if raw != self._raw:
            self._records = list(self._renewed(at_ns, count, raw))
            self._raw = raw
        return at_ns, self._records

    def _renewed(self, at_ns: int, count: int, raw: bytes) -> Iterator[ProcessRecord]:
        size, before = ffi.sizeof("sim_process_record"), self._raw
        for number in range(count):
            words = slice(number * size, (number + 1) * size)
            if raw[words] == before[words]:
                yield self._records[number]
            else:
                yield _process(self._device, at_ns, self._room[number])


def _process(device: int, at_ns: int, record: CData) -> ProcessRecord:
    return ProcessRecord(
        device=device,
        at_ns=at_ns,
        pid=record.pid,
        pid_namespace=record.pid_namespace,
        alive=bool(record.alive),
        tag=text(record.tag),
        command=text(record.comm),
        began_ns=record.began_ns,
        ended_ns=record.ended_ns,
        busy_ns=record.busy_ns,
        copy_ns=record.copy_ns,
        memory_bytes=record.memory_bytes,
        peak_memory_bytes=record.peak_memory_bytes,
        launches=record.launches,
        copies=record.copies,
        pending=record.pending,
        refused=record.refused,
        calls=record.calls,
    )


def _identity(file: Path) -> tuple[int, int, int]:
    """Return device, inode and size of `file`, or zeros if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_dev, found.st_ino, found.st_size)


def _device(info: CData) -> Device:
    profile = info.profile
    first_xid = max(0, info.xid_count - lib.SIM_XIDS)
    return Device(
        index=info.index,
        uuid=f"GPU-{uuid.UUID(bytes=bytes(ffi.buffer(info.uuid)))}",
        name=text(profile.name),
        memory_bytes=profile.memory_bytes,
        compute_capability=(profile.compute_major, profile.compute_minor),
        sm_count=profile.sm_count,
        max_threads_per_sm=profile.max_threads_per_sm,
        tflops=profile.tflops,
        context_bytes=profile.context_bytes,
        time_slice_ns=profile.time_slice_ns,
        sample_period_ns=profile.sample_period_ns,
        lost=bool(info.lost),
        wants_reset=bool(info.wants_reset),
        xid_count=info.xid_count,
        xids=tuple(info.xids[n % lib.SIM_XIDS] for n in range(first_xid, info.xid_count)),
        mig=tuple(
            MigInstance(text(one.profile), one.memory_bytes, one.slices, one.sm_count)
            for one in info.mig[0 : info.mig_count]
        ),
    )


def text(chars: CData) -> str:
    """Decode a NUL-terminated char array."""
    return bytes(ffi.string(chars)).decode(errors="replace")


def put(struct: CData, field: str, value: str, size: int) -> None:
    """Store `value` in a char array, truncated to its size."""
    setattr(struct, field, value.encode()[: size - 1])
