"""Use of device 0 by all processes, as NVML's samples tell it: python nvml_use.py SECONDS"""

import itertools
import statistics
import sys
import time

import pynvml
from say import say


def main():
    seconds = float(sys.argv[1])
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    began_us = time.time_ns() // 1000
    time.sleep(seconds)
    kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
    try:
        _, samples = pynvml.nvmlDeviceGetSamples(device, kind, 0)
    except pynvml.NVMLError as error:  # MIG instances have none
        sys.exit(f"not here: NVML's samples of use: {error}")
    inside = [(one.timeStamp, one.sampleValue.uiVal) for one in samples if one.timeStamp > began_us]
    if len(inside) < 3:
        sys.exit(f"NVML took {len(inside)} samples in {seconds} s")
    apart = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(inside)]
    by_process = {}
    try:
        for one in pynvml.nvmlDeviceGetProcessUtilization(device, began_us):
            by_process[str(one.pid)] = int(one.smUtil)
    except pynvml.NVMLError as error:
        by_process["error"] = str(error)
    say(
        percent=statistics.fmean(value for _, value in inside),
        samples=len(inside),
        period_ms=statistics.median(apart) / 1000,
        by_process=by_process,
        accounting=_accounting(device),
    )


def _accounting(device):
    """Whether the driver keeps accounts (it needs root to begin)."""
    try:
        return int(pynvml.nvmlDeviceGetAccountingMode(device))
    except pynvml.NVMLError as error:
        return str(error)


main()
