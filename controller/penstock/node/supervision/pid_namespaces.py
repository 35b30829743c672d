"""Detection of a tenant's dead processes in other pid namespaces, so that their slots are reaped.

Processes reap each other's slots, but only within one pid namespace, because a pid means nothing in
another one. The supervisor sees the namespaces created inside its own (by `unshare`, or as
containers that a tenant's program starts), and the pids that processes have in them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.devices.proc_files import namespace_of, read_proc_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock_shim.pages import SlotUsage

_START_BITS = 28  # of the start time, as many as fit into an owner word
_INODE_BITS = 32
MOST_ENDED = 20_000  # how many ended processes are remembered
_HIDDEN = -1  # the pid namespace of a process that we may not inspect
_FIRST_NAMESPACE = 0xEFFFFFFC  # the kernel's number of the outermost namespace
Identity = tuple[int, int, int]  # pid namespace, pid in it, start time


class NamespacedProcesses:
    """The known processes in other pid namespaces, and the namespaces seen so far.

    A namespace that was never seen may be hidden from us. All namespaces are visible from the
    machine's first namespace.
    """

    def __init__(self, *, sees_all: bool | None = None, scan_period_ns: int = 0) -> None:
        """`scan_period_ns`: the minimum time between two scans of all processes."""
        self._own = _namespace("self")
        if sees_all is None:  # a /proc that hides processes also hides the first one
            sees_all = self._own == _FIRST_NAMESPACE and Path("/proc/1").exists()
        self._sees_all = sees_all
        self._seen: set[int] = set()
        self._pids: dict[Identity, int] = {}  # pids of the live processes found by the last scan
        self._ended: dict[Identity, None] = {}  # seen by one scan and missing from a later one
        self._known: dict[int, None] = {}  # owner words recorded by `add_visible`
        self._scan_period_ns = scan_period_ns
        self._scanned_ns: int | None = None

    def dead(self, slots: Iterable[SlotUsage], now_ns: int = 0) -> list[SlotUsage]:
        """Slots in other pid namespaces whose processes have ended.

        Args:
            slots: Slots just read from a page, so a process that a later scan does not find has
                ended.
            now_ns: The time, CLOCK_MONOTONIC. No new death is detected before the next scan is due.
        """
        lost = [slot for slot in slots if self.watches(slot) and not self._is_where_it_was(slot)]
        if not lost:
            return []
        # One scan serves all tenants: tenants that are checked after it need not wait for the next
        # scan.
        fresh = self._scan(now_ns)
        return [
            slot
            for slot in lost
            if _identities(slot)[0] in self._ended
            or (
                fresh
                and (
                    self._sees_all or slot.pid_namespace in self._seen or slot.owner in self._known
                )
                and not any(identity in self._pids for identity in _identities(slot))
            )
        ]

    def add_visible(self, owner: int) -> None:
        """Records that scans can see the process with this owner word; it may have ended since.

        Otherwise a process too short-lived for any scan would count as one that is hidden from us.
        """
        self._known[owner] = None
        if len(self._known) > MOST_ENDED:
            del self._known[next(iter(self._known))]

    def watches(self, slot: SlotUsage) -> bool:
        """Whether the slot belongs to a process in another pid namespace."""
        return slot.state == "live" and slot.pid_namespace not in {None, self._own}

    def _is_where_it_was(self, slot: SlotUsage) -> bool:
        pid = next((self._pids[one] for one in _identities(slot) if one in self._pids), None)
        try:
            return pid is not None and _start_ticks(pid) == slot.start_ticks
        except TimeoutError:
            return True

    def _scan(self, now_ns: int) -> bool:
        """Scans all processes; returns False if it is too soon or some cannot be inspected."""
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
    """The identities by which the slot's process may be known."""
    rest = (slot.pid, slot.start_ticks)
    return (slot.pid_namespace or 0, *rest), (_HIDDEN, *rest)


def _namespace(process: str) -> int | None:
    """The inode of a process's pid namespace, None if the process has ended.

    Raises:
        TimeoutError: the process exists but blocks the read.
    """
    try:
        inode = namespace_of(process, "pid")
    except TimeoutError:
        raise
    except PermissionError:
        return _HIDDEN
    except OSError:  # the process has ended
        return None
    return inode & (1 << _INODE_BITS) - 1


def _start_ticks(pid: int) -> int | None:
    """The start time as in an owner word, None if the process has ended or is hidden.

    Raises:
        TimeoutError: the process exists but blocks the read.
    """
    try:
        stat = read_proc_text(pid, "stat")
    except TimeoutError:
        raise
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # fields from the third one: state, parent, …
    # The main thread may have ended while other threads live and use what was granted to them.
    if fields[0] in {"Z", "X"} and int(fields[17]) <= 1:
        return None
    return int(fields[19]) & (1 << _START_BITS) - 1


def _keep(pid: int, before: Mapping[int, Identity], found: dict[Identity, int]) -> None:
    if pid in before:
        found[before[pid]] = pid


def _namespaced(own: int | None, before: Mapping[int, Identity]) -> dict[Identity, int] | None:
    """Live processes in other namespaces, with their pids here; None if some are hidden.

    `before`: the identities found last, for processes that block the reading of their start time.
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
        except OSError:  # the process has ended
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
