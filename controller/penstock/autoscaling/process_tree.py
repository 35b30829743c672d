"""Processes of replicas, from /proc: each process's replica and resource use, and signals to it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.autoscaling.set_store import REPLICA_VARIABLE, SET_VARIABLE
from penstock.devices.proc_files import read_proc
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE, environments, started_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Tree:
    """The processes of one replica."""

    keepers: list[int] = field(default_factory=list)  # Penstock's own, for supervision
    members: list[int] = field(default_factory=list)  # the command's processes, under the quota


@dataclass(frozen=True)
class ProcessTimes:
    """Processor time of one process."""

    parent: int
    start_ticks: int  # since boot; identifies a process uniquely together with the pid
    own_ns: int
    reaped_ns: int  # processor time of ended children that the process has waited for


def trees_of(set_directory: Path) -> dict[int, Tree]:
    """The processes of every replica of a set, by replica number.

    Processes are identified by their initial environment. A process that was started with an empty
    environment is found as a descendant of these.
    """
    found: dict[int, Tree] = {}
    mine = str(set_directory)
    names = (SET_VARIABLE, REPLICA_VARIABLE, TENANT_VARIABLE)
    for pid, variables in environments(*names).items():
        number = variables.get(REPLICA_VARIABLE, "")
        if variables.get(SET_VARIABLE) != mine or not number.isdecimal():
            continue
        tree = found.setdefault(int(number), Tree())
        (tree.members if TENANT_VARIABLE in variables else tree.keepers).append(pid)
    return found


def children_of_all() -> dict[int, list[int]]:
    """The children of every process, from one scan of /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit() and (times := times_of(int(entry))):
            children.setdefault(times.parent, []).append(int(entry))
    return children


def descendants(pids: Iterable[int], children: Mapping[int, Sequence[int]]) -> set[int]:
    """All descendants of the processes `pids`."""
    found: set[int] = set()
    todo = list(pids)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def roots(members: Iterable[int]) -> list[int]:
    """The `members` whose parent is not a member, which are the commands that were started."""
    own = set(members)
    return [pid for pid in own if (times := times_of(pid)) and times.parent not in own]


def times_of(pid: int) -> ProcessTimes | None:
    """Processor time of `pid`; None if the process is gone."""
    try:
        fields = read_proc(pid, "stat").rsplit(b")", 1)[1].split()
        return ProcessTimes(
            parent=int(fields[1]),
            start_ticks=int(fields[19]),
            own_ns=(int(fields[11]) + int(fields[12])) * _TICK_NS,
            reaped_ns=(int(fields[13]) + int(fields[14])) * _TICK_NS,
        )
    except (OSError, IndexError, ValueError):
        return None


def memory_bytes_of(pid: int) -> int | None:
    """The process's proportional set size, or its resident set size if PSS is not readable."""
    try:
        for line in read_proc(pid, "smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    try:
        with open(f"/proc/{pid}/statm", "rb") as stream:  # noqa: PTH123
            return int(stream.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def send(pid: int, number: signal.Signals, set_directory: Path | None = None) -> bool:
    """Sends a signal to `pid`, but never to a process that reused the pid; False if it is gone.

    With `set_directory`, the signal is sent only if the process was started in that set.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # Checked after the descriptor was opened, so that a pid reused before that is noticed.
        if set_directory is not None and started_with(pid, SET_VARIABLE) != str(set_directory):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
