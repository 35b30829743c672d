"""Takes another process off the device and back by the driver's checkpoint; milliseconds a step.

python checkpoint.py PID
"""

import ctypes
import sys
import time

import driver
from say import say

LOCK_TIMEOUT_MS = 10_000


class LockArguments(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint),
                ("reserved", ctypes.c_uint64 * 7)]  # fmt: skip


def main():
    pid = int(sys.argv[1])
    if not driver.has("cuCheckpointProcessLock"):
        say(missing="cuCheckpointProcessLock (CUDA 12.8 brought it)")
        return
    driver.call("cuInit", 0)
    arguments = LockArguments(timeout_ms=LOCK_TIMEOUT_MS)
    steps = [("lock", "cuCheckpointProcessLock", ctypes.byref(arguments)),
             ("checkpoint", "cuCheckpointProcessCheckpoint", None),
             ("restore", "cuCheckpointProcessRestore", None),
             ("unlock", "cuCheckpointProcessUnlock", None)]  # fmt: skip
    took = {}
    for step, name, argument in steps:
        began = time.perf_counter()
        result = driver.code(name, pid, argument)
        took[f"{step}_ms"] = (time.perf_counter() - began) * 1000
        if result == 801 and step == "lock":
            say(missing="the driver answers CUDA_ERROR_NOT_SUPPORTED")
            return
        if result:
            raise driver.DriverError(name, result)
    say(**took)


main()
