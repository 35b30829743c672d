"""A CUDA program in a Pod that launches until SIGTERM, and has something to do then.

`past` takes memory by the driver itself, as no program of good faith does, and launches nothing.
The handler runs when the interpreter has its turn: not while a launch waits, or it is stopped.
"""

import ctypes
import shutil
import signal
import sys
import time
from pathlib import Path

DRIVER = Path("/run/penstock-tenant/driver")
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
"""


def ended(*_):
    print("the last line", flush=True)
    time.sleep(1)
    raise SystemExit(0)


def entered(path):
    driver, context, device = ctypes.CDLL(path), ctypes.c_void_p(), ctypes.c_int()
    assert driver.cuInit(0) == 0
    assert driver.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    return driver


def launch(driver):
    module, function, duration = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(500_000)
    assert driver.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"spin") == 0
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
    for count in range(1 << 30):
        grid = (1, 1, 1, 1, 1, 1, 0, None)
        assert driver.cuLaunchKernel(function, *grid, parameters, None) == 0
        assert driver.cuCtxSynchronize() == 0
        if count % 100 == 0:
            print("launched", count, flush=True)
        time.sleep(0.001)


def main():
    signal.signal(signal.SIGTERM, ended)
    driver = entered("libcuda.so.1")
    if "past" not in sys.argv:
        launch(driver)
    other = Path("/tmp/other")
    other.mkdir()
    for name in ("machine", "tag"):
        (other / name).symlink_to(DRIVER / name)
    shutil.copy(DRIVER / "libcuda.so.1", other / "libother.so")
    beneath, pointer = entered(other / "libother.so"), ctypes.c_uint64()
    taken = beneath.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(8 << 30))
    print("past", taken, flush=True)
    while True:
        time.sleep(0.1)


main()
