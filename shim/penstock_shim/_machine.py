"""An open simulated machine: its devices, their record, and fault injection."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from ._native import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

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
    """A machine file that cannot be created, opened or used."""


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance of a device: NVML lists it, but nothing runs on it."""

    profile: str  # "1g.18gb"
    memory_bytes: int
    slices: int  # of seven
    sm_count: int  # an estimate


@dataclass(frozen=True)
class Device:
    """A simulated device: its fixed properties and its current state."""

    index: int
    uuid: str  # "GPU-…", as NVML spells it; the same for the n-th device of a kind everywhere
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    sm_count: int
    max_threads_per_sm: int
    tflops: float  # rated dense fp16/bf16 tensor rate
    context_bytes: int  # device memory that a process's context takes
    time_slice_ns: int
    sample_period_ns: int
    lost: bool  # a device-lost fault was injected
    wants_reset: bool  # an XID error that only a reset clears; `lift` is a reset
    xid_count: int  # XID errors ever reported
    xids: tuple[int, ...]  # the newest of them, oldest first
    mig: tuple[MigInstance, ...]  # empty: MIG is off


class ProcessRecord(NamedTuple):
    """Record of one process on one device since the machine was created; it may have ended."""

    device: int
    at_ns: int  # CLOCK_MONOTONIC; all values are exact at this time
    pid: int  # in the pid namespace of the process itself
    pid_namespace: int  # that namespace's inode; 0: not known
    alive: bool
    tag: str  # PENSTOCK_SIM_TAG of the process, else its comm
    command: str
    began_ns: int
    ended_ns: int  # 0 while alive
    busy_ns: int  # device time of its kernels: the union over its streams
    copy_ns: int
    memory_bytes: int  # now, contexts included; 0 once ended
    peak_memory_bytes: int
    launches: int
    copies: int
    pending: int  # operations submitted and not completed
    refused: int  # allocations that failed for lack of device memory
    calls: int  # driver calls while the process had a context here


@dataclass(frozen=True)
class DeviceUsage:
    """Usage of a whole device since the machine was created."""

    device: int
    at_ns: int  # CLOCK_MONOTONIC; all values are exact at this time
    created_ns: int
    busy_ns: int
    copy_ns: int
    switch_ns: int  # spent on context switches
    switches: int
    memory_used_bytes: int
    memory_total_bytes: int
    processes: int  # alive with a context
    computing: int  # of those, with kernels waiting or running


@dataclass(frozen=True)
class Sample:
    """Cumulative sums at one of the device's sample times."""

    at_ns: int
    busy_ns: int
    memory_busy_ns: int  # device memory traffic, as time at full bandwidth
    memory_bytes: int


class Machine:
    """An open simulated machine. Close it, or use it in a `with`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the machine at `path`.

        Raises:
            MachineError: the file does not exist, or is not a machine.
        """
        self.path = Path(path).absolute()
        error = ffi.new("char[]", lib.SIM_ERROR_BYTES)
        self._machine = lib.sim_machine_open(os.fsencode(self.path), error)
        if self._machine == ffi.NULL:
            raise MachineError(text(error))
        self._file = _identity(self.path)

    def __enter__(self) -> Machine:  # noqa: PYI034  typing.Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the machine; the file stays. A second call does nothing."""
        if self._machine != ffi.NULL:
            lib.sim_machine_close(self._machine)
            self._machine = ffi.NULL

    def devices(self) -> list[Device]:
        """The devices, in index order."""
        return [_device(info) for info in self._infos()]

    def is_lost(self, device: int = 0) -> bool:
        """Whether a device-lost fault was injected.

        Raises:
            IndexError: no such device.
        """
        return bool(self._info(self._checked(device)).lost)

    def usage(self, device: int = 0) -> DeviceUsage:
        """Usage of the whole device so far.

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
        """Records of every process on the device (default: on each): the ground truth.

        The values of one device are taken at one instant.

        Raises:
            IndexError: no such device.
        """
        indices = range(len(self)) if device is None else [self._checked(device)]
        return [record for index in indices for record in self._record(index)]

    def samples(self, device: int = 0, pid: int = 0) -> list[Sample]:
        """The last utilisation samples of a device, or of one live process on it, oldest first.

        Raises:
            IndexError: no such device.
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
        """Make a fault happen on the device.

        Args:
            kind: which fault.
            device: the device that has it.
            pid: the process that it affects; 0: any.
            skip: number of calls that succeed first.
            count: number of calls that it affects; 0: all until `lift`.
            delay_ns: for ``slow``: how much longer a driver call takes.
            call: glob over the driver function's base name; empty: every call that fits the kind.

        Raises:
            IndexError: no such device.
            MachineError: the machine rejected the fault.
        """
        if kind not in get_args(FaultKind):
            raise MachineError(f"{kind!r} is no fault; there are {', '.join(get_args(FaultKind))}")
        fault = ffi.new("sim_fault *")
        fault.kind, fault.pid, fault.skip, fault.count = _FAULTS[kind], pid, skip, count
        fault.value_ns = delay_ns
        put(fault, "call", call, lib.SIM_TAG_BYTES)
        self._inject(device, fault)

    def lift(self, device: int = 0) -> None:
        """End every fault of the device.

        Raises:
            IndexError: no such device.
        """
        self._inject(device, ffi.new("sim_fault *"))

    def report_xid(self, xid: int, *, device: int = 0) -> None:
        """Make the driver report XID error `xid` of the device; see `Device.wants_reset`.

        Raises:
            IndexError: no such device.
        """
        lib.sim_machine_report_xid(self._open(), self._checked(device), xid)

    def shift_clock(self, ns: int, *, device: int = 0) -> None:
        """Advance the device's clock by `ns` at once, to simulate long drift.

        Raises:
            IndexError: no such device.
        """
        lib.sim_machine_shift_clock(self._open(), self._checked(device), ns)

    def set_mig(self, instances: Sequence[MigInstance], *, device: int = 0) -> None:
        """Divide the device into MIG instances, at most seven; none: MIG is off.

        Raises:
            IndexError: no such device.
            MachineError: a process uses the device, or there are too many.
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
            raise MachineError(f"device {device} of {self.path} refused the fault")

    def _record(self, device: int) -> Iterator[ProcessRecord]:
        at_ns, room, count = self.raw_record(device, ffi.new("sim_process_record[]", 256))
        for number in range(count):
            yield _process(device, at_ns, room[number])

    def raw_record(self, device: int, room: CData) -> tuple[int, CData, int]:
        """The time, the device's raw records, and their number.

        The records are in `room`, or in a larger buffer if `room` is too small.

        Raises:
            IndexError: no such device.
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
        """Whether both machines have the same devices in number and profile; places may differ."""
        return self._fingerprint() == other._fingerprint()

    def _fingerprint(self) -> list[bytes]:
        found = []
        for info in self._infos():
            profile = ffi.new("sim_profile *", info.profile)
            profile.place = 0
            found.append(bytes(ffi.buffer(profile)))
        return found

    def summary(self) -> str:
        """The devices in a few words: "2 x NVIDIA H200"."""
        names = [device.name for device in self.devices()]
        kinds = dict.fromkeys(names)
        return ", ".join(f"{names.count(kind)} x {kind}" for kind in kinds)

    def _open(self) -> CData:
        if self._machine == ffi.NULL:
            raise MachineError(f"the simulated machine {self.path} was closed")
        self._check_file()
        return self._machine

    def _check_file(self) -> None:
        """Raises `MachineError` if the file was truncated: reading it would raise SIGBUS."""
        now = _identity(self.path)  # if removed or replaced, the mapping stays valid
        if now[:2] == self._file[:2] and now[2] < self._file[2]:
            raise MachineError(f"the simulated machine {self.path} was truncated; create it again")

    def _checked(self, device: int) -> int:
        if not 0 <= device < len(self):
            raise IndexError(f"{self.path} has devices 0 to {len(self) - 1}, not {device}")
        return device


class RecordReader:
    """Reads one device's record repeatedly and reuses the objects of unchanged entries."""

    def __init__(self, machine: Machine, device: int) -> None:
        self._machine = machine
        self._device = device
        self._room: CData = ffi.new("sim_process_record[]", 256)
        self._raw = b""
        self._records: list[ProcessRecord] = []

    def read(self) -> tuple[int, list[ProcessRecord]]:
        """The time, and all records; an unchanged record is the same object, with its old time.

        If all are unchanged, the list is the same object too.
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
    """Device, inode and size of `file`; zeros if it does not exist."""
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
    """A NUL-terminated char array."""
    return bytes(ffi.string(chars)).decode(errors="replace")


def put(struct: CData, field: str, value: str, size: int) -> None:
    """Store `value` in a char array, truncated to its size."""
    setattr(struct, field, value.encode()[: size - 1])
