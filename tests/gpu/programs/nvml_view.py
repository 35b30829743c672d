"""What NVML says of device 0: total memory and how many processes compute there."""

import pynvml
from say import say

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(device)
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
say(total_bytes=int(memory.total), used_bytes=int(memory.used), processes=len(processes))
