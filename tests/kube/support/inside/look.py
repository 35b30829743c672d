"""A CUDA program in a Pod: says as JSON what it sees of its device; `stay` keeps it running.

Its quota page goes along, for the test to read: the image has no Penstock. `past` takes memory and
device time by the driver itself, as no program of good faith does. `watch` goes on to say what its
first device's quota has become, a line each time.
"""

import base64
import ctypes
import json
import shutil
import sys
import time
import uuid
from pathlib import Path

PAGE = Path("/run/penstock-tenant/quota")
DRIVER = Path("/run/penstock-tenant/driver")
MIB = 1 << 20


class Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def opened(path="libcuda.so.1"):
    driver = ctypes.CDLL(path)
    assert driver.cuInit(0) == 0
    return driver


def devices(driver):
    count = ctypes.c_int()
    assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return range(count.value)


def enter(driver, device=0):
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def seen_of(driver, device):
    raw, free, total = (ctypes.c_ubyte * 16)(), ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuDeviceGetUuid_v2(ctypes.byref(raw), device) == 0
    enter(driver, device)
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    pointer = ctypes.c_uint64()
    beyond = driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(total.value + MIB))
    within = driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MIB))
    return {
        "uuid": f"GPU-{uuid.UUID(bytes=bytes(raw))}",
        "memory_bytes": total.value,
        "beyond": beyond,
        "within": within,
    }


def nvml():
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == 0
    count, handle, memory = ctypes.c_uint(), ctypes.c_void_p(), Memory()
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    found = []
    for index in range(count.value):
        assert library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
        assert library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        found.append(memory.total)
    return found


def beneath_the_shim():
    """The simulated driver under another name, beside the machine that it is for."""
    other = Path("/tmp/other")
    other.mkdir()
    for name in ("machine", "tag"):
        (other / name).symlink_to(DRIVER / name)
    shutil.copy(DRIVER / "libcuda.so.1", other / "libother.so")
    return opened(other / "libother.so")


def main():
    driver = opened()
    answer = {
        "devices": [seen_of(driver, device) for device in devices(driver)],
        "nvml_bytes": nvml(),
        "page": base64.b64encode(PAGE.read_bytes()).decode(),
    }
    print(json.dumps(answer), flush=True)
    if "past" in sys.argv:
        beneath, pointer = beneath_the_shim(), ctypes.c_uint64()
        enter(beneath)
        taken = beneath.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(8192 * MIB))
        print(json.dumps({"past": taken}), flush=True)
    while "watch" in sys.argv:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        now = {"memory_bytes": total.value, "page": base64.b64encode(PAGE.read_bytes()).decode()}
        if now != answer:
            answer = now
            print(json.dumps(now), flush=True)
        time.sleep(0.2)
    while "stay" in sys.argv:
        time.sleep(3600)


main()
