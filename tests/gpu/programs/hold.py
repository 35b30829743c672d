"""Holds device memory with a pattern in it; at SIGTERM says whether it is still there.

python hold.py BYTES [managed] [fill]

`managed`: it also has a piece of managed memory. `fill`: in the end it takes all that it can get.

It makes many allocations, each with its own pattern, so that swapped contents would show. None is
larger than the allocations whose contents the simulated GPU keeps.
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


def fill():
    """Takes memory in ever smaller pieces until it is refused; returns how much it got."""
    piece, taken = PIECE_BYTES, 0
    while piece >= 2 << 20:
        try:
            driver.alloc(piece)
            taken += piece
        except driver.DriverError as error:
            if error.code != driver.OUT_OF_MEMORY:
                raise
            piece //= 2
    return taken


def main():
    count = max(1, int(sys.argv[1]) // PIECE_BYTES)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    driver.enter()
    pieces = [driver.alloc(PIECE_BYTES) for _ in range(count)]
    if "managed" in sys.argv:
        more = driver.U64()
        driver.call("cuMemAllocManaged", ctypes.byref(more), ctypes.c_size_t(PIECE_BYTES), 1)
    for number, address in enumerate(pieces):
        words = ctypes.c_size_t(PIECE_BYTES // 4)
        driver.call("cuMemsetD32_v2", address, PATTERN + number, words)
    driver.sync()
    before = changed(pieces)
    print("ready", flush=True)
    while not told:
        signal.sigtimedwait([signal.SIGUSR1], 0.05)
    found = changed(pieces)
    say(changed=found, changed_before=before, looks=3 * count, bytes=count * PIECE_BYTES,
        taken_bytes=fill() if "fill" in sys.argv else 0)  # fmt: skip


main()
