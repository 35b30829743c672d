"""Holds device memory with a pattern in it; at SIGTERM says whether it is still there.

python hold.py BYTES
"""

import ctypes
import signal
import sys

import driver
from say import say

LOOK_BYTES = 1 << 20
PATTERN = 0x5EED1234


def main():
    size = int(sys.argv[1])
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    driver.enter()
    address = driver.alloc(size)
    driver.call("cuMemsetD32_v2", address, PATTERN, ctypes.c_size_t(size // 4))
    driver.sync()
    print("ready", flush=True)
    while not told:
        signal.sigtimedwait([signal.SIGUSR1], 0.05)
    same = True
    host = (ctypes.c_uint32 * (LOOK_BYTES // 4))()
    for offset in (0, size // 2, size - LOOK_BYTES):
        place = driver.U64(address.value + offset)
        driver.call("cuMemcpyDtoH_v2", host, place, ctypes.c_size_t(LOOK_BYTES))
        same = same and set(host) == {PATTERN}
    say(same=same, digest=None)


main()
