"""Starts many processes with many mounts at the place of a container's page.

Run by root as `python many_mounts.py UID PROCESSES MOUNTS`. It prints "ready" when all are running.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path

from user_file_system import become, libc

MS_BIND = 4096
POINT = Path("/run/penstock-tenant")


def mount(source: Path, target: Path, kind: str | None, flags: int) -> None:
    words = (str(source).encode(), str(target).encode(), kind.encode() if kind else None)
    if libc.mount(*words, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), f"{kind} on {target}")


def main() -> None:
    become(int(sys.argv[1]))
    processes, mounts = map(int, sys.argv[2:])
    mount(Path("none"), Path("/run"), "tmpfs", 0)
    POINT.mkdir()
    (POINT / ("x" * 200)).mkdir()
    for number in range(mounts):
        # Some where the page is looked for, most just below.
        mount(POINT, POINT if number % 50 == 0 else POINT / ("x" * 200), None, MS_BIND)
    for _ in range(processes):
        if os.fork() == 0:
            threading.Event().wait()
    print("ready", flush=True)
    threading.Event().wait()


main()
