"""A tenant that says that it waits and is busy, and uses nothing: python forges.py USAGE-PAGE.

Says "forges" once it does.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

from penstock_shim._native import ffi

file = Path(sys.argv[1]).open("r+b")  # noqa: SIM115 - until it is killed
mapped = ffi.from_buffer(mmap.mmap(file.fileno(), 0))  # as long as it is kept
page = ffi.cast("penstock_usage_page *", mapped)
page.slots_high = max(page.slots_high, 1)
device, slot = page.gate[0], page.slots[0].gate[0]
slot.submitted = slot.done + 1
print("forges", flush=True)
while True:
    now_ns = time.monotonic_ns()
    device.wanted_ns = slot.waiting_ns = now_ns
    device.busy_until_ns = now_ns + 50_000_000
    time.sleep(0.001)
