"""Files of /proc, read no further than to a bound: a process says itself how long some of them are.

Any user's program may point its environment and its command line at gigabytes of its memory
(prctl PR_SET_MM_MAP), have a million mappings, or lie in cgroups nested without end. Who looks at
all processes of a machine must not pay for it.
"""

from __future__ import annotations

import os

CHUNK_BYTES = 64 << 10
# What is of use in each; more is not read. Linux gives these files no end of their own.
MOST_BYTES = {
    "environ": 256 << 10,
    "cmdline": 4 << 10,
    "maps": 1 << 20,
    "stat": 8 << 10,
    "status": 64 << 10,  # its line of groups may be long, and what is wanted stands behind it
    "cgroup": 64 << 10,
}


def read_proc(pid: int | str, name: str) -> bytes:
    """The beginning of /proc/PID/`name`, of at most `MOST_BYTES` of it.

    Raises OSError: the process has ended, or is hidden from us.
    """
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
    """The same as text; what is no UTF-8 is replaced. Raises OSError."""
    return read_proc(pid, name).decode("utf-8", "replace")
