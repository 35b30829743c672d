"""A program of a tenant that does what its words say, in their order, then waits for its end.

load PERMILLE    from here on keeps the device busy so much of the time
alloc MIB        takes device memory
copy PATH        goes on with another copy of the driver's library, past the shim
scribble         overwrites the tenant's usage page
truncate         cuts it to nothing
daemon           goes on as a grandchild in a session of its own, with an empty environment
headless         ends its first thread; the others go on
stubborn         ignores SIGTERM
fork, again      has a child; becomes another program
init, context    goes no further than that
fill             takes all of its memory quota
wait SECONDS     does nothing meanwhile
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
"""
KERNEL_NS = 500_000


class Device:
    def __init__(self, library: str = "libcuda.so.1") -> None:
        self.driver = ctypes.CDLL(library)
        self.driver.cuMemAlloc_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
        self.function = ctypes.c_void_p()
        self.context = ctypes.c_void_p()
        device, module = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.driver.cuInit(0))
        self.check(self.driver.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device))
        self.check(self.driver.cuCtxSetCurrent(self.context))
        self.check(self.driver.cuModuleLoadData(ctypes.byref(module), PTX))
        self.check(self.driver.cuModuleGetFunction(ctypes.byref(self.function), module, b"spin"))

    def check(self, result: int) -> None:
        if result:
            print(f"error {result}", flush=True)
            os._exit(3)

    def alloc(self, mib: int) -> int:
        pointer = ctypes.c_uint64()
        return self.driver.cuMemAlloc_v2(ctypes.byref(pointer), mib << 20)

    def launch(self, count: int) -> None:
        """Without waiting for it."""
        duration = ctypes.c_uint64(KERNEL_NS)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
        for _ in range(count):
            self.check(
                self.driver.cuLaunchKernel(
                    self.function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None
                )
            )

    def load(self, permille: int) -> None:
        self.check(self.driver.cuCtxSetCurrent(self.context))
        duration = ctypes.c_uint64(KERNEL_NS)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
        while True:
            for _ in range(10):
                self.check(
                    self.driver.cuLaunchKernel(
                        self.function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None
                    )
                )
            self.check(self.driver.cuCtxSynchronize())
            if permille < 1000:
                time.sleep(10 * KERNEL_NS / 1e9 * (1000 - permille) / permille)


def daemon(rest: list[str]) -> None:
    """The classic way out: fork, setsid, fork, exec with an environment of its own."""
    kept = ("PATH", "LD_LIBRARY_PATH", "PENSTOCK_SIM_MACHINE", "PENSTOCK_SIM_KERNELS", "PYTHONPATH")
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    os.execve(sys.executable, [sys.executable, __file__, *rest], environment)  # noqa: S606


class Acts:
    """What each word does; words that need more take them from the rest."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.usage = Path(os.environ.get("PENSTOCK_TENANT_DIR", "/none")) / "usage"
        self.made: Device | None = None

    @property
    def device(self) -> Device:
        self.made = self.made or Device()
        return self.made

    def load(self) -> None:
        arguments = (int(self.words.pop(0)),)
        threading.Thread(target=self.device.load, args=arguments, daemon=True).start()

    def alloc(self) -> None:
        print("alloc", self.device.alloc(int(self.words.pop(0))), flush=True)

    def fill(self) -> None:
        """Takes memory until there is no more of the quota."""
        while self.device.alloc(50) == 0:
            pass

    def init(self) -> None:
        ctypes.CDLL("libcuda.so.1").cuInit(0)

    def context(self) -> None:
        self.made = Device()

    def copy(self) -> None:
        self.made = Device(self.words.pop(0))

    def scribble(self) -> None:
        with self.usage.open("r+b") as file:
            file.write(os.urandom(1 << 20))

    def truncate(self) -> None:
        os.truncate(self.usage, 0)

    def daemon(self) -> None:
        daemon(self.words)
        self.words.clear()

    def headless(self) -> None:
        time.sleep(0.1)
        ctypes.CDLL(None).syscall(60, 0)  # exit of this thread alone

    def stubborn(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def fork(self) -> None:
        """A child that does nothing, with all that its parent has mapped."""
        if os.fork() == 0:
            time.sleep(1000)

    def again(self) -> None:
        """The same program anew, in the same process."""
        os.execv(sys.executable, [sys.executable, __file__, *self.words])  # noqa: S606

    def wait(self) -> None:
        time.sleep(float(self.words.pop(0)))


def main(words: list[str]) -> None:
    acts = Acts(words)
    while words:
        getattr(acts, words.pop(0))()
    print("ready", flush=True)
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    main(sys.argv[1:])
