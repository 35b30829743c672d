"""A program of a Deployment that loads one thing while a page says "burn", and nothing else.

`load.py URL memory|cores|vgpu`: 96 MiB of the node's memory, all the device time that it gets, or
7 GiB of device memory.
"""

import ctypes
import mmap
import sys
import time
import urllib.request

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
"""
BYTES, DEVICE_BYTES = 96 << 20, 7 << 30
ASK_EVERY_S = 1.5


def is_burning(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as page:  # noqa: S310 - the test's own
            return page.read().strip() == b"burn"
    except OSError:
        return False


class Memory:
    """Of the node: touched, so that it is there."""

    def __init__(self):
        self.held = None

    def burn(self):
        if self.held is None:
            self.held = mmap.mmap(-1, BYTES)
            for at in range(0, BYTES, 4096):
                self.held[at] = 1
        time.sleep(0.1)

    def rest(self):
        if self.held is not None:
            self.held.close()
            self.held = None
        time.sleep(0.1)


def driver():
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return cuda


class Cores:
    """Kernels of a millisecond, one after the other."""

    def __init__(self):
        self.cuda = driver()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
        found = self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"spin")
        assert found == 0
        self.duration_ns = ctypes.c_uint64(1_000_000)
        self.parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self.duration_ns))

    def burn(self):
        grid = (1, 1, 1, 1, 1, 1, 0, None)
        assert self.cuda.cuLaunchKernel(self.function, *grid, self.parameters, None) == 0
        assert self.cuda.cuCtxSynchronize() == 0

    def rest(self):
        time.sleep(0.1)


class Vgpu:
    """Device memory, and no kernel."""

    def __init__(self):
        self.cuda, self.pointer = driver(), ctypes.c_uint64()

    def burn(self):
        if not self.pointer.value:
            size = ctypes.c_size_t(DEVICE_BYTES)
            assert self.cuda.cuMemAlloc_v2(ctypes.byref(self.pointer), size) == 0
        time.sleep(0.1)

    def rest(self):
        if self.pointer.value:
            assert self.cuda.cuMemFree_v2(self.pointer) == 0
            self.pointer.value = 0
        time.sleep(0.1)


def main(url, what):
    load, burning, ask_at_s = {"memory": Memory, "cores": Cores, "vgpu": Vgpu}[what](), False, 0.0
    while True:
        if time.monotonic() >= ask_at_s:
            burning, ask_at_s = is_burning(url), time.monotonic() + ASK_EVERY_S
        load.burn() if burning else load.rest()


main(*sys.argv[1:])
