"""Device memory that a process takes besides its allocations, stage by stage, as NVML reports it.

The device must have no other user meanwhile.
"""

import driver
import pynvml
from say import say

pynvml.nvmlInit()
DEVICE = pynvml.nvmlDeviceGetHandleByIndex(0)


def used():
    return int(pynvml.nvmlDeviceGetMemoryInfo(DEVICE).used)


def main():
    stages = {}
    last = used()
    base = last

    def note(stage):
        nonlocal last
        now = used()
        stages[stage] = now - last
        last = now

    driver.enter()
    note("context")
    module = driver.load()
    note("module")
    kernel = driver.function(module, "penstock_tiny")
    driver.launch(kernel)
    driver.sync()
    note("first launch")
    address = driver.alloc(1)
    note("first byte")
    driver.free(address)
    for _ in range(32):
        driver.new_stream()
    note("32 streams")
    for _ in range(1000):
        driver.new_event()
    note("1000 events")
    driver.call("cuCtxSetLimit", 2, driver.ctypes.c_size_t(64 << 20))  # the heap of kernels' malloc
    note("64 MiB of heap")
    say(stages=stages, base_bytes=base)


main()
