"""NVML's view of device 0 from a program at work there: total memory and processes."""

import os

import driver
import pynvml
from say import say

driver.enter()
driver.alloc(1 << 20)
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(device)
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
say(total_bytes=int(memory.total), used_bytes=int(memory.used), processes=len(processes),
    own=sum(one.pid == os.getpid() for one in processes))  # fmt: skip
