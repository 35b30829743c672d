"""Ending of a tenant's processes and their descendants: SIGTERM first, then SIGKILL."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.node.enforcement.process import Process, began, is_alive, read_stat, read_stats
from penstock.node.tenants.tenant_processes import members

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from penstock.node.enforcement.process import Stat
    from penstock.node.tenants.tenant import Tenant

# Only one thread scans all processes at a time: concurrent scans make little progress, and they
# starve the interpreter's other threads.
SCANNING = threading.Lock()


@dataclass(frozen=True)
class Ended:
    """How many processes of a revoked tenant ended on their own, and how many were killed."""

    ended: int
    killed: int


class _Signalled:
    """Processes that were sent a signal, each held by a pidfd because its pid may be reused."""

    def __init__(self) -> None:
        self._pidfds: dict[Process, int] = {}  # the pidfd of each
        self._killed: set[Process] = set()
        self.gone: set[Process] = set()  # ended processes, reaped or not
        self.ended = 0
        self.killed = 0

    def terminate(self, process: Process) -> None:
        """Sends SIGTERM to the process, once."""
        if process in self._pidfds:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.gone.add(process)
            return
        except OSError:  # no descriptors are left; the next scan retries
            return
        if not is_alive(process):  # the process has ended, or its pid was reused
            os.close(descriptor)
            self.gone.add(process)
            return
        self._pidfds[process] = descriptor
        _send(descriptor, signal.SIGTERM)
        _send(descriptor, signal.SIGCONT)  # a stopped process can end only after it continues

    def kill(self, process: Process) -> None:
        """Sends SIGKILL to the process, once."""
        if process in self._pidfds and process not in self._killed:
            self._killed.add(process)
            _send(self._pidfds[process], signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Waits until a process ends, or for `timeout_s`, and counts the processes that ended."""
        poll = select.poll()
        by_pidfd = {descriptor: process for process, descriptor in self._pidfds.items()}
        for descriptor in by_pidfd:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(timeout_s * 1000):
            process = by_pidfd[descriptor]
            os.close(self._pidfds.pop(process))
            self.killed += process in self._killed
            self.ended += process not in self._killed
            self._killed.discard(process)
            self.gone.add(process)

    def close(self) -> None:
        """Closes all descriptors."""
        for descriptor in self._pidfds.values():
            os.close(descriptor)
        self._pidfds.clear()


class _Family:
    """A tenant's processes and their descendants, even those that changed their environment.

    The family remembers each process it has found, so that children are still found after their
    parent has ended.
    """

    def __init__(
        self, directory: Path, uid: int | None, is_anothers: Callable[[Process], bool]
    ) -> None:
        self._directory = directory
        self._uid = uid
        self._is_anothers = is_anothers
        self._found: dict[int, Process] = {}  # by pid
        self._numbers: set[int] = set()  # sessions and process groups that they may lead

    def scan(self, known: Iterable[Process], spare: Collection[int]) -> list[Process]:
        """The family's live processes, except those that descend only from pids in `spare`.

        `known`: processes that other sources have assigned to the tenant.
        """
        spare = {*spare, os.getpid()}
        stats = _stats_of_all()
        named = {
            one.pid
            for one in (*known, *self._found.values())
            if one.pid in stats and began(stats[one.pid], one)
        }
        anothers = {
            pid
            for pid, stat in stats.items()
            if pid not in named and self._is_anothers(self._process(pid, stat))
        }
        numbers = self._numbers_in_use(stats)
        own = {*members(self._directory, self._uid), *named} - spare - anothers
        reached = own
        while reached:
            own |= reached
            numbers |= reached
            reached = {
                pid
                for pid, stat in stats.items()
                if pid not in own
                and pid not in spare
                and pid not in anothers
                and (stat.parent in own or stat.session in numbers or stat.group in numbers)
            }
        living = {pid: self._process(pid, stats[pid]) for pid in own & stats.keys()}
        self._found |= living
        self._numbers = numbers
        return sorted(living.values())

    def _numbers_in_use(self, stats: Mapping[int, Stat]) -> set[int]:
        """The ids still in use: the kernel keeps an id while its session or group has members."""
        in_use = {number for stat in stats.values() for number in (stat.session, stat.group)}
        anothers = {
            pid
            for pid in self._numbers & stats.keys()
            if self._process(pid, stats[pid]) != self._found.get(pid)
        }
        return (self._numbers & in_use) - anothers

    def _process(self, pid: int, stat: Stat) -> Process:
        """The process with this pid, as found earlier if its start time is unreadable now."""
        before = self._found.get(pid)
        known = before is not None and began(stat, before)
        return before if before and known else Process(pid, stat.start_ticks)


def _stats_of_all() -> dict[int, Stat]:
    """The stat of every live process, including those whose start time is unreadable."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    found = read_stats(pids)
    for pid in set(pids) - found.keys():
        if (stat := read_stat(pid)) is not None:
            found[pid] = stat
    return {pid: stat for pid, stat in found.items() if not stat.has_ended}


class Ending:
    """Ends the processes of one tenant. Not thread-safe."""

    def __init__(
        self,
        tenant: Tenant,
        uid: int | None,
        known: Callable[[], Iterable[Process]],
        is_anothers: Callable[[Process], bool],
    ) -> None:
        """Prepares the ending; no signal is sent yet.

        Args:
            tenant: The tenant.
            uid: The user whose processes may claim, by their environment, to belong to the tenant;
                None for any user.
            known: Returns processes that belong to the tenant whatever their environment says now.
            is_anothers: Whether a process is known to belong to another tenant, even if it descends
                from a process of this one.
        """
        self._known = known
        self._signalled = _Signalled()
        self._family = _Family(tenant.directory, uid, is_anothers)

    @property
    def so_far(self) -> Ended:
        """How many processes have ended so far."""
        return Ended(ended=self._signalled.ended, killed=self._signalled.killed)

    def scan(self, spare: Collection[int]) -> list[Process]:
        """The tenant's live processes, without the pids in `spare`."""
        with SCANNING:
            found = self._family.scan(self._known(), spare)
        # The scan counts an unreadable process as alive, but its pidfd shows whether it has ended.
        return self.without_ended(found)

    def without_ended(self, found: Iterable[Process]) -> list[Process]:
        """`found` without the processes known to have ended since they were signalled."""
        return [one for one in found if one not in self._signalled.gone]

    def end(self, living: Iterable[Process], *, kill: bool) -> None:
        """Sends SIGTERM to each process, once, and with `kill` also SIGKILL."""
        for process in living:
            self._signalled.terminate(process)
            if kill:
                self._signalled.kill(process)

    def wait(self, timeout_s: float) -> None:
        """Waits until one of the signalled processes ends, or for `timeout_s`."""
        self._signalled.wait(timeout_s)

    def close(self) -> None:
        """Closes all descriptors."""
        self._signalled.close()


def _send(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, number)
