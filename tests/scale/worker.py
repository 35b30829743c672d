"""One replica of a test, which takes its part of the load in a control file.

The file, JSON: "cpu" is processors, "cores" is device time in quotas of one replica, both for all
replicas together, as behind a load balancer; "mebibytes" is device memory of each; "die" is numbers
that exit with 7; "stubborn" ones stay after SIGTERM.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

SLICE_S = 0.1
QUOTA = 0.1  # of the device's time, as the tests' policies grant
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
"""

control, log = Path(sys.argv[1]), Path(sys.argv[2])
number = int(os.environ["PENSTOCK_REPLICA"])


def note(word: str) -> None:
    with log.open("a") as stream:
        stream.write(f"{number} {os.getpid()} {word}\n")


def siblings() -> int:
    """The number of running replicas, this one included."""
    tenants = Path(os.environ["PENSTOCK_TENANT_DIR"]).parent
    return max(1, sum(not path.name.startswith(".") for path in tenants.iterdir()))


def orders() -> dict[str, object]:
    try:
        return json.loads(control.read_text())
    except (OSError, ValueError):
        return {}


def burn(share: float) -> None:
    end = time.process_time() + SLICE_S * share
    while time.process_time() < end:
        pass


class Gpu:
    """Kernels on the simulated device."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.cuMemAlloc_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
        device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.function = ctypes.c_void_p()
        assert self.driver.cuInit(0) == 0
        assert self.driver.cuDeviceGet(ctypes.byref(device), 0) == 0
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert self.driver.cuCtxSetCurrent(context) == 0
        assert self.driver.cuModuleLoadData(ctypes.byref(module), PTX) == 0
        assert self.driver.cuModuleGetFunction(ctypes.byref(self.function), module, b"spin") == 0
        self.held = 0

    def spin(self, nanoseconds: int) -> None:
        kernel_ns = ctypes.c_uint64(nanoseconds)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(kernel_ns))
        launch = self.driver.cuLaunchKernel
        assert launch(self.function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None) == 0
        assert self.driver.cuCtxSynchronize() == 0

    def hold(self, mebibytes: int) -> None:
        while self.held < mebibytes:
            pointer = ctypes.c_uint64()
            assert self.driver.cuMemAlloc_v2(ctypes.byref(pointer), 64 << 20) == 0
            self.held += 64


def end(_number: int, _frame: object) -> None:
    note("term")
    if not orders().get("stubborn"):
        sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, end)
    note("start")
    gpu = None
    while True:
        wanted = orders()
        began = time.monotonic()
        share = siblings()
        if number in wanted.get("die", []):
            note("die")
            sys.exit(7)
        burn(float(wanted.get("cpu", 0)) / share)
        busy = float(wanted.get("cores", 0)) / share
        if (busy or wanted.get("mebibytes")) and gpu is None:
            gpu = Gpu()
        if gpu is not None:
            gpu.hold(int(wanted.get("mebibytes", 0)))
            slice_ns = int(SLICE_S * 1e9 * min(busy, 1.0) * QUOTA)
            if slice_ns:
                gpu.spin(slice_ns)
        time.sleep(max(0.0, began + SLICE_S - time.monotonic()))


if __name__ == "__main__":
    main()
