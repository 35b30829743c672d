"""Process identity: the pid and the start time, a combination that is never reused."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.devices.proc_files import read_proc, read_proc_of, read_proc_text

if TYPE_CHECKING:
    from collections.abc import Iterable

_PF_EXITING = 4  # include/linux/sched.h
UNKNOWN = -1  # start time of a process in the middle of execve, whose stat is unreadable


@dataclass(frozen=True, order=True)
class Process:
    """A process, identified by its pid and start time because pids alone are reused."""

    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat
    command: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command})" if self.command else f"pid {self.pid}"


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that Penstock uses."""

    comm: str
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    has_ended: bool  # also true while the kernel is tearing it down
    leader_has_ended: bool  # the main thread has ended; others may still run


def read_stat(pid: int) -> Stat | None:
    """The process's stat, None if there is no such process or it is hidden from us."""
    try:
        return _parsed(read_proc(pid, "stat"))
    except TimeoutError:
        return _without_start(pid)
    except OSError:
        return None


def read_stats(pids: Iterable[int]) -> dict[int, Stat]:
    """Stats by pid, except for processes whose start time cannot be read now."""
    found = read_proc_of(pids, "stat")
    return {pid: stat for pid, raw in found.items() if (stat := _parsed(raw)) is not None}


def _parsed(raw: bytes) -> Stat | None:
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    leader_has_ended = fields[0] in {b"Z", b"X"} or bool(int(fields[6]) & _PF_EXITING)
    return Stat(
        comm=_printable(head.partition(b"(")[2]),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        # The main thread may end before others: then it appears as a zombie, but the process lives.
        has_ended=leader_has_ended and int(fields[17]) <= 1,
        leader_has_ended=leader_has_ended,
    )


def _without_start(pid: int) -> Stat | None:
    """The stat without a start time, from /proc/PID/status, which never blocks."""
    fields = _status(pid)
    if fields is None:
        return None
    state = fields.get("State", "?").strip()[:1]
    leader_has_ended = state in {"Z", "X"}
    return Stat(
        comm=_printable(fields.get("Name", "").strip().encode()),
        state=state,
        parent=int(fields.get("PPid", "0")),
        group=int(fields.get("NSpgid", "0").split()[0]),
        session=int(fields.get("NSsid", "0").split()[0]),
        start_ticks=UNKNOWN,
        has_ended=leader_has_ended and int(fields.get("Threads", "1")) <= 1,
        leader_has_ended=leader_has_ended,
    )


def _status(pid: int) -> dict[str, str] | None:
    try:
        status = read_proc_text(pid, "status")
    except OSError:
        return None
    return dict(line.split(":", 1) for line in status.splitlines() if ":" in line)


def find(pid: int) -> Process | None:
    """The process with this pid, None if it does not exist, ended or hides its start time."""
    stat = read_stat(pid)
    if stat is None or stat.has_ended or stat.start_ticks == UNKNOWN:
        return None
    return Process(pid, stat.start_ticks, stat.comm)


def is_alive(process: Process) -> bool:
    """Whether the process is still alive."""
    stat = read_stat(process.pid)
    return stat is not None and not stat.has_ended and began(stat, process)


def began(stat: Stat, process: Process) -> bool:
    """Whether `stat` may be this process's, by an equal or an unreadable start time."""
    return stat.start_ticks in {process.start_ticks, UNKNOWN}


def is_stopped(process: Process) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    stat = read_stat(process.pid)
    return stat is not None and began(stat, process) and stat.state in {"T", "t"}


def hears(process: Process, number: signal.Signals) -> bool:
    """Whether the signal would end the process or reach one of its handlers.

    The first process of a pid namespace receives only the signals that it has handlers for.
    """
    fields = _status(process.pid)
    if fields is None:
        return False
    bit = 1 << (number - 1)
    if int(fields.get("SigIgn", "0"), 16) & bit:
        return False
    is_first = fields.get("NSpid", "0").split()[-1] == "1"
    return not is_first or bool(int(fields.get("SigCgt", "0"), 16) & bit)


def send(process: Process, *signals: signal.Signals) -> bool:
    """Sends `signals` to this very process; returns False if it has ended.

    The pidfd holds the pid's current process, and the start time is read afterwards, so a reused
    pid shows a later start time. A process with an unreadable start time is assumed to be the one
    that had the pid at the last poll.

    Raises:
        OSError: we may not signal the process, or the kernel is older than 5.3.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        stat = read_stat(process.pid)
        if stat is None or not began(stat, process):
            return False
        for one in signals:
            signal.pidfd_send_signal(descriptor, one)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def command_line(pid: int) -> str:
    """The process's command line, or its short name if that is hidden or empty, for display."""
    raw = b""
    with contextlib.suppress(OSError):
        raw = read_proc(pid, "cmdline")[:400]
    if words := raw.rstrip(b"\0"):
        return _printable(words.replace(b"\0", b" "))[:200]
    stat = read_stat(pid)
    return stat.comm if stat else ""


def why_unshimmed(pid: int) -> str:
    """Why the process's calls are not accounted for, as text, judged by its mapped files."""
    try:
        maps = read_proc_text(pid, "maps")
    except OSError as error:
        if isinstance(error, TimeoutError):
            return "its memory map cannot be read"
        return "it has no slot in the tenant's usage page"
    return _why_of(maps)


def _why_of(maps: str) -> str:
    files = {line[line.index("/") :] for line in maps.splitlines() if "/" in line}
    names = {file.rpartition("/")[2] for file in files}
    if any(name.startswith("libpenstock") for name in names):
        return "the shim is mapped, but its calls bypass it"
    # musl's loader is also its C library. Debian has it in its own directory,
    # x86_64-linux-musl/libc.so.
    musl = _first(names, "ld-musl-", "libc.musl-") or next(
        (name for file in files for name in [file.rpartition("/")[2]] if "-musl/libc.so" in file),
        None,
    )
    if musl:
        return f"no shim is mapped: its C library is musl ({musl}), which reads no preload file"
    if glibc := _first(names, "libc.so.6", "libc-2."):
        return f"no shim is mapped: it lost the preload; its C library is glibc ({glibc})"
    if other := _first(names, "libc.so", "libuClibc", "ld-"):
        return f"no shim is mapped: it lost the preload; its C library is {other}"
    return "no shim is mapped: it is a static program with an unknown C library"


def _first(names: Iterable[str], *beginnings: str) -> str | None:
    """The first file name with one of the prefixes, made printable because tenants choose names."""
    found = sorted(name for name in names if name.startswith(beginnings))
    return _printable(found[0][:64].encode()) if found else None


def _printable(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
