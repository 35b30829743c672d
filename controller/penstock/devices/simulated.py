"""Simulated devices: the machine file of `penstock_shim.simulator` behind the device interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.devices.host_pids import HostPids
from penstock.devices.interface import Device, DeviceProcess, DriverLibraries
from penstock.model import PenstockError
from penstock_shim import paths, simulator

if TYPE_CHECKING:
    from pathlib import Path


class SimulatedDevices:
    """The devices of an existing simulated machine."""

    def __init__(self, machine: Path) -> None:
        self._path = machine
        self._machine = simulator.Machine(machine)
        self._pids = HostPids()

    @property
    def machine(self) -> Path | None:
        """The machine's file."""
        return self._path

    def devices(self) -> list[Device]:
        """All devices of the machine."""
        try:
            devices = self._machine.devices()
        except simulator.MachineError as error:  # truncated meanwhile
            raise PenstockError("the simulated devices cannot be asked", str(error)) from error
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

    def libraries(self) -> DriverLibraries:
        """The simulated driver's libraries."""
        folder = paths.sim_dir()
        return DriverLibraries(str(folder / "libcuda.so.1"), str(folder / "libnvidia-ml.so.1"))

    def environment(self, tag: str) -> dict[str, str]:
        """Puts a program on this machine and labels it in the device's record."""
        return simulator.environment(self._path, tag)

    def processes(self, device: Device) -> list[DeviceProcess]:
        """The device's own record of every process it has seen, with pids as this process has them.

        Pid 0: it ended in another pid namespace, or runs where we cannot look.
        """
        try:
            records = self._machine.record(device.index)
        except simulator.MachineError as error:  # truncated meanwhile
            raise PenstockError("the simulated device cannot be asked", str(error)) from error
        pids = self._pids.of(records)
        return [
            DeviceProcess(
                pid=pid,
                tag=record.tag,
                memory_bytes=record.memory_bytes,
                peak_memory_bytes=record.peak_memory_bytes,
                busy_ns=record.busy_ns,
                busy_permille=None,
                at_ns=record.at_ns,
                alive=record.alive,
            )
            for record, pid in zip(records, pids, strict=True)
        ]
