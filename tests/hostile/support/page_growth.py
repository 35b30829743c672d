"""Makes a user's own usage page grow, by the method WAY, until the process is ended.

Run by root as `python page_growth.py UID PAGE WAY`. It is no process of the tenant: it has its own
session, and an environment without the tenant. It keeps its descriptor after the page is removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

FALLOC_FL_KEEP_SIZE = 1
MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def grow(page: int, way: str, number: int) -> None:
    """Takes some room, if there is any."""
    with contextlib.suppress(OSError):
        if way == "length":
            os.posix_fallocate(page, 0, (4 + number % 200) * MIB)
        elif way == "blocks":  # past its end, which its length does not show
            libc.fallocate(page, FALLOC_FL_KEEP_SIZE, 4 * MIB, (1 + number % 200) * MIB)
        else:
            os.setxattr(page, f"user.{number}", b"x" * 60000)


def main() -> None:
    uid, path, way = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    page = os.open(path, os.O_RDWR)
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        grow(page, way, number)


main()
