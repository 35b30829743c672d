"""Holds device memory with a pattern in it; at SIGTERM says whether it is still there.

python hold.py BYTES

Many allocations, as programs have them, each with a pattern of its own: one that came back in
another's place would show. No larger than what the simulated GPU keeps the contents of.
"""

import ctypes
import signal
import sys

import driver
from say import say

PIECE_BYTES = 64 << 20
LOOK_BYTES = 1 << 20
PATTERN = 0x5EED0000


def changed(pieces):
    """How many looks into the pieces (both ends, the middle) find something else."""
    host = (ctypes.c_uint32 * (LOOK_BYTES // 4))()
    found = 0
    for number, address in enumerate(pieces):
        for offset in (0, PIECE_BYTES // 2, PIECE_BYTES - LOOK_BYTES):
            place = driver.U64(address.value + offset)
            driver.call("cuMemcpyDtoH_v2", host, place, ctypes.c_size_t(LOOK_BYTES))
            found += set(host) != {PATTERN + number}
    return found


def main():
    count = max(1, int(sys.argv[1]) // PIECE_BYTES)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    driver.enter()
    pieces = [driver.alloc(PIECE_BYTES) for _ in range(count)]
    for number, address in enumerate(pieces):
        words = ctypes.c_size_t(PIECE_BYTES // 4)
        driver.call("cuMemsetD32_v2", address, PATTERN + number, words)
    driver.sync()
    before = changed(pieces)
    print("ready", flush=True)
    while not told:
        signal.sigtimedwait([signal.SIGUSR1], 0.05)
    say(changed=changed(pieces), changed_before=before, looks=3 * count,
        bytes=count * PIECE_BYTES)  # fmt: skip


main()
