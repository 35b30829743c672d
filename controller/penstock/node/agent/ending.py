"""Ends a tenant's processes and their descendants: SIGTERM first, then SIGKILL."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from typing import TYPE_CHECKING

from penstock.node.agent.view import Ended
from penstock.node.enforcement.process import Process, began, is_alive, read_stat, read_stats
from penstock.node.tenants.tenant_processes import members

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from penstock.node.enforcement.process import Stat
    from penstock.node.tenants.tenant import Tenant

# One scan of all processes at a time: concurrent scans hardly progress, and starve other threads of
# the interpreter.
LOOKING = threading.Lock()


class _Signalled:
    """Signalled processes, each held by a pidfd, as its pid may be reused."""

    def __init__(self) -> None:
        self._asked: dict[Process, int] = {}  # pidfds
        self._killed: set[Process] = set()
        self.gone: set[Process] = set()  # ended processes, reaped or not
        self.ended = 0
        self.killed = 0

    def ask(self, process: Process) -> None:
        """Sends SIGTERM, once."""
        if process in self._asked:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.gone.add(process)
            return
        except OSError:  # no descriptor is left; the next scan retries
            return
        if not is_alive(process):  # it has ended, or its pid was reused
            os.close(descriptor)
            self.gone.add(process)
            return
        self._asked[process] = descriptor
        _send(descriptor, signal.SIGTERM)
        _send(descriptor, signal.SIGCONT)  # a stopped process must continue to end

    def kill(self, process: Process) -> None:
        """Sends SIGKILL, once."""
        if process in self._asked and process not in self._killed:
            self._killed.add(process)
            _send(self._asked[process], signal.SIGKILL)

    def wait(self, timeout_s: float) -> None:
        """Waits until one of them ends, or for `timeout_s`; counts those that did."""
        poll = select.poll()
        asked = {descriptor: process for process, descriptor in self._asked.items()}
        for descriptor in asked:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(timeout_s * 1000):
            process = asked[descriptor]
            os.close(self._asked.pop(process))
            self.killed += process in self._killed
            self.ended += process not in self._killed
            self._killed.discard(process)
            self.gone.add(process)

    def close(self) -> None:
        """Closes all descriptors."""
        for descriptor in self._asked.values():
            os.close(descriptor)
        self._asked.clear()


class _Family:
    """A tenant's processes and their descendants, whatever they do to their environment.

    Processes found once are remembered, so that their children are still found after their end.
    """

    def __init__(
        self, directory: Path, uid: int | None, is_anothers: Callable[[Process], bool]
    ) -> None:
        self._directory = directory
        self._uid = uid
        self._is_anothers = is_anothers
        self._found: dict[int, Process] = {}  # by pid
        self._numbers: set[int] = set()  # ids of sessions and groups that they may lead

    def look(self, known: Iterable[Process], spare: Collection[int]) -> list[Process]:
        """The live processes, except those that descend from `spare` alone.

        `known`: processes known from elsewhere to be the tenant's.
        """
        spare = {*spare, os.getpid()}
        stats = _stats_of_all()
        told = {
            one.pid
            for one in (*known, *self._found.values())
            if one.pid in stats and began(stats[one.pid], one)
        }
        anothers = {
            pid
            for pid, stat in stats.items()
            if pid not in told and self._is_anothers(self._process(pid, stat))
        }
        numbers = self._numbers_in_use(stats)
        own = {*members(self._directory, self._uid), *told} - spare - anothers
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
        """Ids still in use: the kernel never reuses one while its session or group has members."""
        in_use = {number for stat in stats.values() for number in (stat.session, stat.group)}
        anothers = {
            pid
            for pid in self._numbers & stats.keys()
            if self._process(pid, stats[pid]) != self._found.get(pid)
        }
        return (self._numbers & in_use) - anothers

    def _process(self, pid: int, stat: Stat) -> Process:
        """The process; as found before where its start time cannot be read now."""
        before = self._found.get(pid)
        known = before is not None and began(stat, before)
        return before if before and known else Process(pid, stat.start_ticks)


def _stats_of_all() -> dict[int, Stat]:
    """The stat of every live process, also where the start time is unreadable."""
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
        """Does nothing yet.

        Args:
            tenant: The tenant.
            uid: Uid whose processes may claim by their environment to be the tenant's; None: any.
            known: Processes known to be the tenant's, whatever their environment says now.
            is_anothers: Whether a process is known to be another tenant's, though it may descend
                from this one's.
        """
        self._known = known
        self._signalled = _Signalled()
        self._family = _Family(tenant.directory, uid, is_anothers)

    @property
    def so_far(self) -> Ended:
        """How many have ended."""
        return Ended(ended=self._signalled.ended, killed=self._signalled.killed)

    def look(self, spare: Collection[int]) -> list[Process]:
        """The live processes, without the pids in `spare`."""
        with LOOKING:
            found = self._family.look(self._known(), spare)
        # An unreadable process counts as alive here; its pidfd tells whether it has ended.
        return self.without_ended(found)

    def without_ended(self, found: Iterable[Process]) -> list[Process]:
        """`found` without those known to have ended since they were signalled."""
        return [one for one in found if one not in self._signalled.gone]

    def end(self, living: Iterable[Process], *, kill: bool) -> None:
        """Sends SIGTERM to each of them, once; with `kill` SIGKILL as well."""
        for process in living:
            self._signalled.ask(process)
            if kill:
                self._signalled.kill(process)

    def wait(self, timeout_s: float) -> None:
        """Waits until one of them ends, or for `timeout_s`."""
        self._signalled.wait(timeout_s)

    def close(self) -> None:
        """Closes all descriptors."""
        self._signalled.close()


def _send(pidfd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(pidfd, number)
