"""Detection of device use that bypasses a tenant's shim, by a lost preload or direct driver calls.

It compares the device's own figures with what was charged. It only reports its finding, in the
tenant's events and in `penstock ps`; it does not enforce.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.devices.proc_files import read_proc_text
from penstock.model import format_cores, human_memory
from penstock.node.tenants.json_files import read_record
from penstock.node.tenants.tenant_processes import TENANT_VARIABLE, started_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from penstock.devices import DeviceProcess
    from penstock_shim.pages import UsageSnapshot

FILE = "uncharged"  # in the tenant's directory, while there is a finding; contains its text
CONFIRM_NS = 1_000_000_000  # because two sources are never read at the same moment
WINDOW_NS = 4_000_000_000
SLACK_BYTES = 64 << 20
SLACK_PERMILLE = 50
_ADVICE = "keep LD_PRELOAD and PENSTOCK_* in its environment, or see SECURITY.md"
# If the process has the shim, the figures alone do not show which of two causes applies.
_EITHER = (
    "either a program bypasses the shim (SECURITY.md lists how that happens by accident), or "
    "Penstock charged its calls too little; if the program does nothing on that list, please "
    "report it with the program and this line"
)


def belongs(pid: int, directory: Path, supervisor: int) -> bool:
    """Whether `pid` belongs to the tenant, by its own environment or that of an ancestor.

    A program with a cleared environment is recognised by its ancestors while they are alive.
    """
    for _ in range(64):
        if pid <= 1:
            return False
        if pid == supervisor or started_with(pid, TENANT_VARIABLE) == str(directory):
            return True
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    """The parent's pid, 0 if the process has ended."""
    return int(_status(pid, "PPid", "0").split()[0])


def _inner_pid(pid: int) -> int:
    """The process's pid in its own pid namespace, which is the pid in its slot."""
    return int(_status(pid, "NSpid", str(pid)).split()[-1])


def _status(pid: int, name: str, default: str) -> str:
    """A field of /proc/PID/status, whose reading never waits for a lock held by the process."""
    try:
        status = read_proc_text(pid, "status")
    except OSError:
        return default
    found = (line for line in status.splitlines() if line.startswith(f"{name}:"))
    return next(found, "").partition(":")[2].strip() or default


@dataclass(frozen=True)
class _Sample:
    at_ns: int
    busy_ns: int
    spent_ns: int


@dataclass
class Watch:
    """Watches one tenant on one device. `check` is called about once a second."""

    since_ns: int | None = None  # when excess memory, or a process without a slot, was first seen
    samples: deque[_Sample] = field(default_factory=deque)
    done: dict[int, tuple[int, int]] = field(default_factory=dict)  # by slot: done, and since when

    def check(
        self,
        now_ns: int,
        usage: UsageSnapshot,
        index: int,
        own: Sequence[DeviceProcess],
        *,
        charged_bytes: int,
        context_bytes: int,
        allowed_permille: int,
    ) -> str | None:
        """The tenant's unaccounted use, as a sentence; None if there is none or it is unconfirmed.

        Args:
            now_ns: The time, CLOCK_MONOTONIC.
            usage: The tenant's usage page.
            index: The device's index in the grant.
            own: The tenant's processes as the device reports them, including ended ones.
            charged_bytes: The most that was charged at about the time of `own`.
            context_bytes: The memory of one process's context.
            allowed_permille: The share of the device's time that the tenant may use now.
        """
        alive = [process for process in own if process.alive]
        strangers = _without_slot(alive, usage)
        found = _of_strangers(strangers) or _of_memory(alive, charged_bytes, context_bytes)
        if found is None:
            self.since_ns = None
        elif self.since_ns is None:
            self.since_ns = now_ns
        time_found = self._of_time(now_ns, usage, index, own, allowed_permille)
        if found is not None and self.since_ns is not None and now_ns - self.since_ns >= CONFIRM_NS:
            return found
        return time_found

    def _of_time(
        self,
        now_ns: int,
        usage: UsageSnapshot,
        index: int,
        own: Sequence[DeviceProcess],
        allowed_permille: int,
    ) -> str | None:
        if not own or any(process.busy_ns is None for process in own):
            return None  # real devices report no totals, only recent utilisation
        sample = _Sample(
            max(process.at_ns for process in own),
            sum(process.busy_ns or 0 for process in own),
            usage.devices[index].spent_ns,
        )
        if self.samples and sample.busy_ns < self.samples[-1].busy_ns:
            self.samples.clear()  # the device no longer counts a process that has ended
        self.samples.append(sample)
        while len(self.samples) > 2 and sample.at_ns - self.samples[1].at_ns >= WINDOW_NS:
            self.samples.popleft()
        pending_ns = self._pending_ns(now_ns, usage, index)
        first = self.samples[0]
        elapsed_ns = sample.at_ns - first.at_ns
        if elapsed_ns < WINDOW_NS:
            return None
        used = (sample.busy_ns - first.busy_ns) * 1000 // elapsed_ns
        charged = (sample.spent_ns - first.spent_ns) * 1000 // elapsed_ns
        sure = (sample.busy_ns - first.busy_ns - pending_ns) * 1000 // elapsed_ns
        if used <= allowed_permille + SLACK_PERMILLE or sure <= charged + SLACK_PERMILLE:
            return None
        return (
            f"this tenant used {format_cores(used)} percent of the device's time, but only "
            f"{format_cores(max(0, charged))} percent were charged and "
            f"{format_cores(allowed_permille)} percent are granted "
            f"({_pids(p for p in own if p.alive)}): {_EITHER}"
        )

    def _pending_ns(self, now_ns: int, usage: UsageSnapshot, index: int) -> int:
        """How long the unfinished work, which is charged when it ends, may have been running."""
        pending_ns = 0
        done = {}
        for slot in usage.slots:
            count, since = self.done.get(slot.slot, (-1, now_ns))
            if count != slot.done[index] or slot.submitted[index] == slot.done[index]:
                since = now_ns
            done[slot.slot] = (slot.done[index], since)
            if slot.submitted[index] != slot.done[index]:
                pending_ns = max(pending_ns, now_ns - since + CONFIRM_NS)
        self.done = done
        return pending_ns


def _without_slot(alive: Iterable[DeviceProcess], usage: UsageSnapshot) -> list[DeviceProcess]:
    pids = {slot.pid for slot in usage.slots}
    return [
        process
        for process in alive
        # After cuInit alone, a process has no slot, and there is nothing to charge.
        if (process.memory_bytes != 0 or process.busy_ns)
        and process.pid not in pids
        and _inner_pid(process.pid) not in pids
    ]


def _of_strangers(strangers: Sequence[DeviceProcess]) -> str | None:
    if not strangers:
        return None
    amounts = [one.memory_bytes for one in strangers if one.memory_bytes is not None]
    held = f" and holds {human_memory(sum(amounts))}" if amounts else ""
    return (
        f"{_pids(strangers)} uses the device without a quota{held}: the shim is not loaded; "
        f"{_ADVICE}"
    )


def _of_memory(
    alive: Sequence[DeviceProcess], charged_bytes: int, context_bytes: int
) -> str | None:
    amounts = [process.memory_bytes for process in alive if process.memory_bytes is not None]
    if sum(amounts) <= charged_bytes + len(alive) * context_bytes + SLACK_BYTES:
        return None
    return (
        f"the device reports {human_memory(sum(amounts))} for this tenant, but only "
        f"{human_memory(charged_bytes)} is charged ({_pids(alive)}): {_EITHER}"
    )


def _pids(processes: Iterable[DeviceProcess]) -> str:
    pids = sorted(process.pid for process in processes)
    shown = ", ".join(map(str, pids[:8])) + (" …" if len(pids) > 8 else "")
    return f"pid {shown}" if pids else "by processes that ended"


def own_processes(
    seen: Iterable[DeviceProcess], tenant: str, is_member: Callable[[int], bool]
) -> list[DeviceProcess]:
    """The device's processes that belong to the tenant, by their tag or by `is_member`."""
    return [p for p in seen if p.tag == tenant or (p.alive and is_member(p.pid))]


def write_finding(directory: Path, found: str | None) -> None:
    """Writes the finding for `penstock ps`, or removes it if None. A full disk loses it."""
    file = directory / FILE
    aside = directory / f".{FILE}.{os.getpid()}"
    try:
        if found is None:
            file.unlink(missing_ok=True)
            return
        aside.write_text(found, encoding="utf-8")
        aside.replace(file)
    except OSError:
        return


def read_finding(directory: Path) -> str | None:
    """The supervisor's current finding, None if there is none."""
    try:
        text = read_record(directory / FILE, errors="replace")[:2000]
    except OSError:
        return None
    return " ".join(text.split()) or None
