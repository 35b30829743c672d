"""A worker that ends with the status that it is told, on a system without room at first."""

import errno
import os
import sys
import time

time.sleep(float(os.environ.get("SLOW_S", "0")))
_fork = os.fork


def fork_next_time() -> int:
    os.fork = _fork
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


os.fork = fork_next_time


def main() -> int:
    """The status."""
    return int(sys.argv[1])
