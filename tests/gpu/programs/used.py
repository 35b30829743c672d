"""How much of device 0's memory is taken, as the driver and NVML say; others' use is in it too."""

import ctypes

import driver
from driver import call

MIB = 1 << 20


class NvmlMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _nvml_device():
    """NVML's handle of device 0 and the library; None: NVML does not have it."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    bus, handle = ctypes.create_string_buffer(64), ctypes.c_void_p()
    call("cuDeviceGetPCIBusId", bus, 64, 0)
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)):
        return None
    return library, handle


class Used:
    """Differences between two moments, in bytes: what the driver's free memory fell by."""

    def __init__(self):
        self._nvml = _nvml_device()
        self.last = self.now()
        self.last_nvml = self.nvml()

    @staticmethod
    def now():
        free, total = driver.info()
        return total - free

    def nvml(self):
        """As NVML says; None where it says nothing."""
        memory = NvmlMemory()
        if self._nvml is None or self._nvml[0].nvmlDeviceGetMemoryInfo(
            self._nvml[1], ctypes.byref(memory)
        ):
            return None
        return memory.used

    def more(self):
        """Bytes taken since the last time, as the driver says."""
        now = self.now()
        before, self.last = self.last, now
        return now - before

    def more_by_nvml(self):
        """The same as NVML says; None where it says nothing."""
        now = self.nvml()
        before, self.last_nvml = self.last_nvml, now
        return None if now is None or before is None else now - before
