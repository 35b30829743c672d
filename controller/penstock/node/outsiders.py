"""Which of a tenant's processes in other pid namespaces have died.

Processes look after each other's slots, but only within one pid namespace: elsewhere a pid tells
nothing. The supervisor sees the namespaces that were made inside its own (`unshare`, containers
that a tenant's program starts), with their processes' pids there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock_shim.pages import SlotUsage

_START_BITS = 28  # of the start time, as many as an owner word holds
_INODE_BITS = 32
_HIDDEN = -1  # the pid namespace of a process that does not let us look
_FIRST_NAMESPACE = 0xEFFFFFFC  # the kernel's number of the namespace that holds all others
Identity = tuple[int, int, int]  # pid namespace, pid there, start time


class Outsiders:
    """Remembers which namespaces it saw: one that it never saw may be where we cannot look.

    From the machine's first namespace all others are seen.
    """

    def __init__(self, *, sees_all: bool | None = None) -> None:
        self._own = _namespace("self")
        if sees_all is None:  # a /proc that hides processes hides the first one too
            sees_all = self._own == _FIRST_NAMESPACE and Path("/proc/1").exists()
        self._sees_all = sees_all
        self._seen: set[int] = set()

    def dead(self, slots: Iterable[SlotUsage]) -> list[SlotUsage]:
        """Slots in other pid namespaces whose processes have ended."""
        foreign = {
            slot: slot.pid_namespace
            for slot in slots
            if slot.state == "live" and slot.pid_namespace not in {None, self._own}
        }
        if not foreign:
            return []
        alive = _alive({_HIDDEN, *(namespace or 0 for namespace in foreign.values())})
        if alive is None:
            return []
        self._seen |= {namespace for namespace, _, _ in alive}
        return [
            slot
            for slot, namespace in foreign.items()
            if (self._sees_all or namespace in self._seen)
            and (namespace, slot.pid, slot.start_ticks) not in alive
            and (_HIDDEN, slot.pid, slot.start_ticks) not in alive
        ]


def _namespace(process: str) -> int | None:
    try:
        inode = Path(f"/proc/{process}/ns/pid").stat().st_ino
    except PermissionError:
        return _HIDDEN
    except OSError:  # it ended
        return None
    return inode & (1 << _INODE_BITS) - 1


def _alive(namespaces: set[int]) -> set[Identity] | None:
    """Processes of these namespaces, zombies left out. None: some cannot be told."""
    found = set()
    for entry in os.listdir("/proc"):  # noqa: PTH208
        namespace = _namespace(entry) if entry.isdigit() else None
        if namespace not in namespaces or namespace is None:
            continue
        try:
            status = Path(f"/proc/{entry}/status").read_text(errors="replace")
            stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
        except PermissionError:
            return None
        except OSError:  # it ended
            continue
        fields = stat.rpartition(")")[2].split()  # from the third on: state, parent, …
        inner = [line for line in status.splitlines() if line.startswith("NSpid:")]
        if fields[0] not in {"Z", "X"} and inner:
            start = int(fields[19]) & (1 << _START_BITS) - 1
            found.add((namespace, int(inner[0].split()[-1]), start))
    return found
