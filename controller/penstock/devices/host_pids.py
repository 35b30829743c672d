"""Host pids of processes in other pid namespaces, as a kernel driver would report them.

The simulated device runs inside the processes that use it, so it knows only the pid that a process
has in its own namespace. NVML reports the pid that the process has in the caller's namespace.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.devices.proc_files import namespace_of, read_proc_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock_shim.simulator import ProcessRecord

_Inner = tuple[int, int, int]  # pid namespace, pid in it, time of first use of the device


class HostPids:
    """Translates pids, and caches each result while the device lists the process."""

    def __init__(self) -> None:
        self._own = pid_namespace_of("self")
        self._known: dict[_Inner, int] = {}

    def of(self, records: Sequence[ProcessRecord]) -> list[int]:
        """Each process's pid in this namespace; 0 if it has none or ended in another namespace."""
        foreign = {
            (record.pid_namespace, record.pid, record.began_ns)
            for record in records
            if record.pid_namespace not in {0, self._own} and record.alive
        }
        self._known = {key: pid for key, pid in self._known.items() if key in foreign}
        missing = {(namespace, pid) for namespace, pid, _ in foreign - self._known.keys()}
        if missing:
            found = _look_for(missing)
            for key in foreign - self._known.keys():
                if key[:2] in found:
                    self._known[key] = found[key[:2]]
        return [
            record.pid
            if record.pid_namespace in {0, self._own}
            else self._known.get((record.pid_namespace, record.pid, record.began_ns), 0)
            for record in records
        ]


def pid_namespace_of(pid: int | str) -> int:
    """The pid namespace of `pid` (or "self"); 0 if the process has ended or is hidden."""
    try:
        return namespace_of(pid, "pid")
    except OSError:
        return 0


def inner_pid(pid: int) -> int:
    """The pid of process `pid` in its own pid namespace; `pid` itself if the process has ended."""
    try:
        status = read_proc_text(pid, "status")
    except OSError:
        return pid
    line = next((one for one in status.splitlines() if one.startswith("NSpid:")), "")
    return int(line.split()[-1]) if line else pid


def _look_for(wanted: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """The pids in this namespace of the processes `wanted`, given as (pid namespace, pid there)."""
    namespaces = {namespace for namespace, _ in wanted}
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and (namespace := pid_namespace_of(entry)) in namespaces:
            key = (namespace, inner_pid(int(entry)))
            if key in wanted:
                found[key] = int(entry)
    return found
