"""A driver-API program that does what its input says, a line at a time, and answers each line.

alloc MIB      → "ok" or the error's name
free           → "ok": gives the newest allocation back
info           → free and total bytes
load SECONDS   → "ok" after that long of kernels, always some queued
fork COMMAND   → runs a shell command in a child, answers its output
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time

PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) { ret; }
"""

driver = ctypes.CDLL("libcuda.so.1")
driver.cuMemAlloc_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]


def name_of(result: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorName(result, ctypes.byref(text))
    return (text.value or b"?").decode()


def check(result: int) -> None:
    if result:
        print(name_of(result), flush=True)
        sys.exit(1)


def start() -> ctypes.c_void_p:
    check(driver.cuInit(0))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(driver.cuDeviceGet(ctypes.byref(device), 0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(driver.cuCtxSetCurrent(context))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuModuleLoadData(ctypes.byref(module), PTX))
    check(driver.cuModuleGetFunction(ctypes.byref(function), module, b"spin"))
    return function


def load(function: ctypes.c_void_p, seconds: float) -> None:
    kernel_ns = ctypes.c_uint64(500_000)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(kernel_ns))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
    check(driver.cuCtxSynchronize())


def main() -> None:
    function = start()
    pointers: list[int] = []
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        answer = "ok"
        if word == "alloc":
            pointer = ctypes.c_uint64()
            result = driver.cuMemAlloc_v2(ctypes.byref(pointer), int(rest) << 20)
            if result:
                answer = name_of(result)
            else:
                pointers.append(pointer.value)
        elif word == "free":
            check(driver.cuMemFree_v2(pointers.pop()))
        elif word == "info":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            check(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
            answer = f"{free.value} {total.value}"
        elif word == "load":
            load(function, float(rest))
        elif word == "fork":
            answer = subprocess.run(
                ["sh", "-c", rest], capture_output=True, text=True, check=False
            ).stdout.strip()
        print(answer, flush=True)


if __name__ == "__main__":
    main()
