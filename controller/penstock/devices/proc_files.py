"""Bounded reads of /proc files, whose length may be under the process's control.

Any user's program may point its environment and command line at gigabytes of its memory (prctl
PR_SET_MM_MAP), have a million mappings, or be in deeply nested cgroups. This must not slow down a
scan of all processes.

Reads of some files wait for locks that the process may hold (`aside.READS`). Root reads these files
through a helper process. Other users read them only for their own processes, so a process that
blocks the read harms only its owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from penstock.devices.aside import PROCESSES, READS

if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK_BYTES = 64 << 10
# How much of each file is read. Linux does not limit the length of these files.
MOST_BYTES = {
    "environ": 256 << 10,
    "cmdline": 4 << 10,
    "maps": 1 << 20,
    "stat": 8 << 10,
    "status": 64 << 10,  # the line of groups may be long, and the wanted lines come after it
    "cgroup": 64 << 10,
    "smaps_rollup": 8 << 10,
}
_OWN_ALONE = {"environ", "smaps_rollup", "ns/pid", "ns/time"}  # readable only by the owner


def read_proc(pid: int | str, name: str) -> bytes:
    """The beginning of /proc/PID/`name`, at most `MOST_BYTES` of it.

    This is enough to find Penstock's variables in an environment.

    Raises:
        OSError: the process has ended or is hidden from this user.
        PermissionError: the process belongs to another user, and only its owner may read the file.
        TimeoutError: the process exists but holds the lock that the read needs.
    """
    if name in READS and pid != "self" and int(pid) != os.getpid():
        if os.geteuid() == 0:
            return PROCESSES.read(int(pid), name)
        if name in _OWN_ALONE and not _is_ours(pid):  # even a refused read would wait for the lock
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"/proc/{pid}/{name}")
    return _read(pid, name)


def read_proc_of(pids: Iterable[int], name: str) -> dict[int, bytes]:
    """`read_proc` for many processes, by pid; leaves out processes that cannot be read."""
    if name in READS and os.geteuid() == 0:
        return PROCESSES.read_many(pids, name)
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = read_proc(pid, name)
    return found


def namespace_of(pid: int | str, kind: str) -> int:
    """The number of the process's namespace of `kind`. Raises OSError like `read_proc`."""
    link = read_proc(pid, f"ns/{kind}")
    return int(link.partition(b"[")[2].rstrip(b"]"))


def _is_ours(pid: int | str) -> bool:
    return os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116 - for each process


def _read(pid: int | str, name: str) -> bytes:
    if name.startswith("ns/"):
        return os.fsencode(os.readlink(f"/proc/{pid}/{name}"))  # noqa: PTH115
    most = MOST_BYTES[name]
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = os.read(descriptor, min(most, CHUNK_BYTES))
        if not raw:
            return raw
        parts, length = [raw], len(raw)
        while length < most:
            raw = os.read(descriptor, min(CHUNK_BYTES, most - length))
            if not raw:
                break
            parts.append(raw)
            length += len(raw)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def read_proc_text(pid: int | str, name: str) -> str:
    """`read_proc` as text; invalid UTF-8 is replaced. Raises OSError."""
    return read_proc(pid, name).decode("utf-8", "replace")
