"""Detects use of a device that bypasses a tenant's shim: a lost preload, or direct driver calls.

It compares the device's own figures with what was charged. It only reports, in the tenant's events
and in `penstock ps`; enforcement is elsewhere.
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

FILE = "uncharged"  # in the tenant's directory while the finding holds: the text for the user
CONFIRM_NS = 1_000_000_000  # two sources are never read at the same moment
WINDOW_NS = 4_000_000_000
SLACK_BYTES = 64 << 20
SLACK_PERMILLE = 50
_ADVICE = "keep LD_PRELOAD and PENSTOCK_* in its environment, or see SECURITY.md"
# For a process that has the shim, the figures alone do not show which of the two it is.
_EITHER = (
    "either a program bypasses the shim (SECURITY.md lists how that happens by accident), or "
    "Penstock charged its calls too little; if the program does nothing on that list, please "
    "report it with the program and this line"
)


def belongs(pid: int, directory: Path, supervisor: int) -> bool:
    """Whether `pid` runs under the tenant, by its own environment or that of an ancestor.

    A program with a fresh environment is recognised by its ancestors, as long as they live.
    """
    for _ in range(64):
        if pid <= 1:
            return False
        if pid == supervisor or started_with(pid, TENANT_VARIABLE) == str(directory):
            return True
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    """The parent's pid; 0 if the process has ended."""
    return int(_status(pid, "PPid", "0").split()[0])


def _inner_pid(pid: int) -> int:
    """The process's pid in its own pid namespace, with which it claims its slot."""
    return int(_status(pid, "NSpid", str(pid)).split()[-1])


def _status(pid: int, name: str, default: str) -> str:
    """A field of /proc/PID/status; reading it never waits for a lock that the process holds."""
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
    """Watches one tenant on one device. `look` is called about once a second."""

    since_ns: int | None = None  # when excess memory, or a process without a slot, was first seen
    samples: deque[_Sample] = field(default_factory=deque)
    done: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot: done, since

    def look(
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
        """The tenant's unaccounted use, as a sentence; None: none, or not confirmed.

        Args:
            now_ns: CLOCK_MONOTONIC.
            usage: The tenant's usage page.
            index: The device's index in the grant.
            own: The tenant's processes as the device reports them, ended ones too.
            charged_bytes: The most that was charged at about the time of `own`.
            context_bytes: Memory of one process's context.
            allowed_permille: Share of the device's time that the tenant may use now.
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
            return None  # real devices report recent utilisation only: there is no total to compare
        sample = _Sample(
            max(process.at_ns for process in own),
            sum(process.busy_ns or 0 for process in own),
            usage.devices[index].spent_ns,
        )
        if self.samples and sample.busy_ns < self.samples[-1].busy_ns:
            self.samples.clear()  # the device no longer counts a process that ended
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
            f"the device worked {format_cores(used)} percent of its time for this tenant, "
            f"{format_cores(max(0, charged))} were charged and {format_cores(allowed_permille)} "
            f"granted ({_pids(p for p in own if p.alive)}): {_EITHER}"
        )

    def _pending_ns(self, now_ns: int, usage: UsageSnapshot, index: int) -> int:
        """How long the work in flight, which is charged when it ends, may have run."""
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
        # After cuInit alone there is neither a slot nor anything to charge.
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
        f"the device holds {human_memory(sum(amounts))} for this tenant and "
        f"{human_memory(charged_bytes)} are charged ({_pids(alive)}): {_EITHER}"
    )


def _pids(processes: Iterable[DeviceProcess]) -> str:
    pids = sorted(process.pid for process in processes)
    shown = ", ".join(map(str, pids[:8])) + (" …" if len(pids) > 8 else "")
    return f"pid {shown}" if pids else "by processes that ended"


def own_processes(
    seen: Iterable[DeviceProcess], tenant: str, is_member: Callable[[int], bool]
) -> list[DeviceProcess]:
    """The device's processes that belong to the tenant, by its tag or by `is_member`."""
    return [p for p in seen if p.tag == tenant or (p.alive and is_member(p.pid))]


def write_finding(directory: Path, found: str | None) -> None:
    """Writes the finding for `penstock ps`, or removes it (None). On a full disk it is lost."""
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
    """The supervisor's present finding; None: nothing."""
    try:
        text = read_record(directory / FILE, errors="replace")[:2000]
    except OSError:
        return None
    return " ".join(text.split()) or None
