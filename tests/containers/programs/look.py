"""A CUDA program in a container: says as JSON what it sees and gets. For Python 3.9 too."""

import ctypes
import json
import os
import sys

import pynvml

MIB = 1 << 20


def cuda(within_mib, beyond_mib):
    driver = ctypes.CDLL("libcuda.so.1")
    seen = {"init": driver.cuInit(0)}
    if seen["init"]:
        return seen
    count, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    pointer = ctypes.c_void_p()
    driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    seen["devices"], seen["total_mib"] = count.value, total.value // MIB

    def take(mib):
        return driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))

    seen["beyond"], seen["within"] = take(beyond_mib), take(within_mib)
    return seen


def nvml():
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "devices": pynvml.nvmlDeviceGetCount(),
        "total_mib": pynvml.nvmlDeviceGetMemoryInfo(device).total // MIB,
    }


answer = {"uid": os.getuid(), "cuda": cuda(int(sys.argv[1]), int(sys.argv[2])), "nvml": nvml()}
print(json.dumps(answer))
