"""A program that allocates device memory as its input says, one line for each line.

"allocate BYTES" answers with the result's name, "info" with what is free and the total, "uuid" with
the UUID of its device.
"""

from __future__ import annotations

import sys
import uuid

from cuda.bindings import driver as cu
from patterns import Device, ok


def answer(words: list[str]) -> str:
    if words[0] == "allocate":
        result, _ = cu.cuMemAlloc(int(words[1]))
        return str(result.name)
    if words[0] == "info":
        free, total = ok(cu.cuMemGetInfo())
        return f"{free} {total}"
    return str(uuid.UUID(bytes=bytes(ok(cu.cuDeviceGetUuid(0)).bytes)))


device = Device()
print("ready", flush=True)
for line in sys.stdin:
    print(answer(line.split()), flush=True)
