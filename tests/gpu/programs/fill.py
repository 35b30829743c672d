"""Takes device memory until it is refused, in ever smaller pieces; says so; holds it until SIGTERM.

python fill.py SMALLEST_BYTES
"""

import os
import signal
import sys

import driver
from say import say


def main():
    smallest = int(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # also the second time
    driver.enter()
    free_before, total = driver.info()
    piece, taken = 256 << 20, 0
    while piece >= smallest:
        try:
            driver.alloc(piece)
            taken += piece
        except driver.DriverError as error:
            if error.code != driver.OUT_OF_MEMORY:
                raise
            piece //= 2
    free_after, _ = driver.info()
    say(taken_bytes=taken, total_bytes=total, free_before=free_before, free_after=free_after)
    print("full", flush=True)
    signal.pause()


main()
