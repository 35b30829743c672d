"""Which of a tenant's processes in other pid namespaces have died.

Processes look after each other's slots, but only within one pid namespace: elsewhere a pid tells
nothing. The supervisor sees the namespaces that were made inside its own (`unshare`, containers
that a tenant's program starts), with their processes' pids there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices.proc_files import namespace_of, read_proc_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock_shim.pages import SlotUsage

_START_BITS = 28  # of the start time, as many as an owner word holds
_INODE_BITS = 32
MOST_ENDED = 20_000  # are remembered
_HIDDEN = -1  # the pid namespace of a process that does not let us look
_FIRST_NAMESPACE = 0xEFFFFFFC  # the kernel's number of the namespace that holds all others
Identity = tuple[int, int, int]  # pid namespace, pid there, start time


class NamespacedProcesses:
    """Remembers where it saw whom, and which namespaces.

    One that it never saw may be where we cannot look; from the machine's first namespace all others
    are seen.
    """

    def __init__(self, *, sees_all: bool | None = None, scan_period_ns: int = 0) -> None:
        """`scan_period_ns`: how often, at most, all processes of the machine are looked at."""
        self._own = _namespace("self")
        if sees_all is None:  # a /proc that hides processes hides the first one too
            sees_all = self._own == _FIRST_NAMESPACE and Path("/proc/1").exists()
        self._sees_all = sees_all
        self._seen: set[int] = set()
        self._pids: dict[Identity, int] = {}  # of living processes, as of the last scan
        self._ended: dict[Identity, None] = {}  # that earlier scans saw, and the last ones did not
        self._met: dict[int, None] = {}
        self._scan_period_ns = scan_period_ns
        self._scanned_ns: int | None = None

    def dead(self, slots: Iterable[SlotUsage], now_ns: int = 0) -> list[SlotUsage]:
        """Slots in other pid namespaces whose processes have ended.

        Args:
            slots: Read from a page just now: who is not there has ended since.
            now_ns: CLOCK_MONOTONIC; before the next scan is due, nobody new is found dead.
        """
        lost = [slot for slot in slots if self.watches(slot) and not self._is_where_it_was(slot)]
        if not lost:
            return []
        # One scan is for all tenants: whose turn comes after it must not wait for the next one.
        fresh = self._scan(now_ns)
        return [
            slot
            for slot in lost
            if _identities(slot)[0] in self._ended
            or (
                fresh
                and (self._sees_all or slot.pid_namespace in self._seen or slot.owner in self._met)
                and not any(identity in self._pids for identity in _identities(slot))
            )
        ]

    def meet(self, owner: int) -> None:
        """The process with that owner word lay where scans see it, though it may have ended since.

        Else one that lived too short for any scan would be taken for one that nobody here can see.
        """
        self._met[owner] = None
        if len(self._met) > MOST_ENDED:
            del self._met[next(iter(self._met))]

    def watches(self, slot: SlotUsage) -> bool:
        """Whether it is of a process in another pid namespace."""
        return slot.state == "live" and slot.pid_namespace not in {None, self._own}

    def _is_where_it_was(self, slot: SlotUsage) -> bool:
        pid = next((self._pids[one] for one in _identities(slot) if one in self._pids), None)
        try:
            return pid is not None and _start_ticks(pid) == slot.start_ticks
        except TimeoutError:
            return True

    def _scan(self, now_ns: int) -> bool:
        """Looks at all processes; False: not again so soon, or some cannot be told."""
        if self._scanned_ns is not None and now_ns < self._scanned_ns + self._scan_period_ns:
            return False
        self._scanned_ns = now_ns
        alive = _namespaced(self._own, {pid: identity for identity, pid in self._pids.items()})
        if alive is None:
            return False
        for identity in self._pids.keys() - alive.keys():
            self._ended[identity] = None
        while len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._pids = alive
        self._seen |= {namespace for namespace, _, _ in alive}
        return True


def _identities(slot: SlotUsage) -> tuple[Identity, Identity]:
    """Under which a process of the slot is known."""
    rest = (slot.pid, slot.start_ticks)
    return (slot.pid_namespace or 0, *rest), (_HIDDEN, *rest)


def _namespace(process: str) -> int | None:
    """None: it ended. Raises TimeoutError: it is there, and keeps that from being told."""
    try:
        inode = namespace_of(process, "pid")
    except TimeoutError:
        raise
    except PermissionError:
        return _HIDDEN
    except OSError:  # it ended
        return None
    return inode & (1 << _INODE_BITS) - 1


def _start_ticks(pid: int) -> int | None:
    """When the process began, as an owner word holds it; None: it has ended, or is hidden.

    Raises TimeoutError: it is there, and keeps it from being told.
    """
    try:
        stat = read_proc_text(pid, "stat")
    except TimeoutError:
        raise
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # from the third on: state, parent, …
    # Its first thread may have ended while others live on, and hold what they were given.
    if fields[0] in {"Z", "X"} and int(fields[17]) <= 1:
        return None
    return int(fields[19]) & (1 << _START_BITS) - 1


def _keep(pid: int, before: Mapping[int, Identity], found: dict[Identity, int]) -> None:
    if pid in before:
        found[before[pid]] = pid


def _namespaced(own: int | None, before: Mapping[int, Identity]) -> dict[Identity, int] | None:
    """Living processes of other namespaces, and their pids here. None: some cannot be told.

    `before`: as they were found last, for those who keep it from being told when they began.
    """
    found: dict[Identity, int] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        try:
            namespace = _namespace(entry) if entry.isdigit() else None
        except TimeoutError:
            _keep(int(entry), before, found)
            continue
        if namespace in {None, own} or namespace is None:
            continue
        try:
            status = read_proc_text(entry, "status")
        except PermissionError:
            return None
        except OSError:  # it ended
            continue
        inner = [line for line in status.splitlines() if line.startswith("NSpid:")]
        try:
            start = _start_ticks(int(entry))
        except TimeoutError:
            _keep(int(entry), before, found)
            continue
        if start is not None and inner:
            found[namespace, int(inner[0].split()[-1]), start] = int(entry)
    return found
