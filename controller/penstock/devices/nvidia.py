"""Real NVIDIA devices, through NVML. The only module that imports pynvml."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pynvml

from penstock.devices.interface import Device, DeviceProcess, DriverLibraries
from penstock.devices.models import model_of
from penstock.model import PenstockError

USE_SIMULATION = "install the NVIDIA driver, or run on the simulated GPU with --simulate h200"


class NvidiaDevices:
    """The machine's NVIDIA GPUs. Raises `PenstockError` where there is no driver or no device."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
            self._handles = [
                pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
            ]
        except pynvml.NVMLError as error:
            raise PenstockError(
                "no NVIDIA driver on this machine", str(error), USE_SIMULATION
            ) from error
        if not self._handles:
            raise PenstockError(
                "no NVIDIA device on this machine", "the driver lists none", USE_SIMULATION
            )

    @property
    def machine(self) -> Path | None:
        """Real devices have no machine file."""
        return None

    def devices(self) -> list[Device]:
        """All GPUs, in NVML's order."""
        found = []
        for index, handle in enumerate(self._handles):
            name = str(pynvml.nvmlDeviceGetName(handle))
            model = model_of(name)
            found.append(
                Device(
                    index=index,
                    uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                    name=name,
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                    context_bytes=model.context_bytes,
                    tflops=model.tflops,
                    simulated=False,
                )
            )
        return found

    def libraries(self) -> DriverLibraries:
        """Where this process's NVML came from; the driver's libcuda lies beside it."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
        match = re.search(r"\s(/\S*/libnvidia-ml\.so\S*)$", maps, re.MULTILINE)
        if match is None:
            return DriverLibraries("", "")
        cuda = Path(match[1]).with_name("libcuda.so.1")
        return DriverLibraries(str(cuda) if cuda.exists() else "", match[1])

    def environment(self, tag: str) -> dict[str, str]:  # noqa: ARG002 - the device knows no tags
        """Nothing: programs find the driver as ever."""
        return {}

    def processes(self, device: Device) -> list[DeviceProcess]:
        """Processes with a context now, with memory and recent utilisation where known."""
        handle = self._handles[device.index]
        now_ns = time.monotonic_ns()
        busy = self._utilisation(handle)
        try:
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError:
            return []  # not told (some virtual machines, some permissions): N/A, not an error
        return [
            DeviceProcess(
                pid=int(process.pid),
                tag=None,
                memory_bytes=None if process.usedGpuMemory is None else int(process.usedGpuMemory),
                peak_memory_bytes=None,
                busy_ns=None,
                # Who has no sample did nothing; None: the driver tells of nobody.
                busy_permille=None if busy is None else busy.get(int(process.pid), 0),
                at_ns=now_ns,
                alive=True,
            )
            for process in running
        ]

    @staticmethod
    def _utilisation(handle: object) -> dict[int, int] | None:
        """Permille of the last second by pid: the mean of the driver's samples of that time.

        None: not told (MIG, some virtual machines).
        """
        since_us = time.time_ns() // 1000 - 1_000_000
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
        except pynvml.NVMLError_NotFound:
            return {}  # nobody did anything
        except pynvml.NVMLError:
            return None
        by_pid: dict[int, list[int]] = {}
        for sample in samples:
            by_pid.setdefault(int(sample.pid), []).append(int(sample.smUtil) * 10)
        return {pid: sum(values) // len(values) for pid, values in by_pid.items()}
