"""Device figures per tenant: memory and busy time, assigned to tenants by pid alone.

A figure that a device does not report is None, and is never judged.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.devices import DeviceLostError
from penstock.node.enforcement.process import Process, command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.devices import DeviceBackend, DeviceLook, DeviceProcess
    from penstock.node.enforcement.members import Members

WINDOW_NS = 4_000_000_000  # period over which use of cores is judged


class User(NamedTuple):
    """A live process on a device."""

    process: Process
    memory_bytes: int | None
    busy_ns: int | None  # since the process started
    busy_permille: int | None  # recent use, if the device reports only that


@dataclass(frozen=True)
class Foreign:
    """An untracked process on a device. It is reported, but not ended."""

    device: str
    process: Process
    memory_bytes: int | None


@dataclass
class DeviceUsers:
    """The processes on one device at one point in time."""

    at_ns: int
    users: dict[str, list[User]] = field(default_factory=dict)  # by tenant
    ended_busy_ns: dict[int, int] = field(default_factory=dict)  # by pid
    foreign: list[Foreign] = field(default_factory=list)


class DevicePoller:
    """Polls all devices, and reuses unchanged results.

    A tenant's list of users is the same object as at the last poll if nothing in it changed.
    """

    def __init__(self, source: DeviceBackend, members: Members) -> None:
        self._source = source
        self._members = members
        self._seen: dict[str, _Seen] = {}  # by device

    def poll(self) -> dict[str, DeviceUsers]:
        """The processes on each device by UUID; lost devices are left out.

        Raises:
            PenstockError: the file of the simulated machine is gone.
        """
        found = {}
        for device in self._source.devices():
            with contextlib.suppress(DeviceLostError):  # skip this device and poll the others
                seen = self._seen.setdefault(device.uuid, _Seen(device.uuid))
                found[device.uuid] = seen.take(self._source.look(device), self._members)
        return found


class _Seen:
    """The processes on one device, as of the last poll."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._processes: Sequence[DeviceProcess] = ()
        self._changes = -1  # `Members.changes` at that poll
        self._found = DeviceUsers(0)
        self._lasts = False  # all processes are assigned or ended, so none must be checked again

    def take(self, look: DeviceLook, members: Members) -> DeviceUsers:
        same = look.processes is self._processes and members.changes == self._changes
        if not (same and self._lasts):
            self._lasts, users = True, self._found.users
            self._found = DeviceUsers(0)
            for one in look.processes:
                self._add(one, members)
            for tenant, now in self._found.users.items():
                if users.get(tenant) == now:
                    self._found.users[tenant] = users[tenant]
            self._processes, self._changes = look.processes, members.changes
        self._found.at_ns = look.at_ns
        return self._found

    def _add(self, one: DeviceProcess, members: Members) -> None:
        found = self._found
        if not one.alive:
            if one.busy_ns is not None and one.pid > 0:
                found.ended_busy_ns[one.pid] = one.busy_ns
            return
        tenant = members.tenant_of(one.pid) if one.pid > 0 else None  # 0 outside our pid namespace
        process = members.process(one.pid)
        if tenant is None or process is None:  # a None process has ended meanwhile
            self._lasts = False
            if process is not None:
                named = Process(process.pid, process.start_ticks, command_line(process.pid))
                found.foreign.append(Foreign(self._uuid, named, one.memory_bytes))
            return
        user = User(process, one.memory_bytes, one.busy_ns, one.busy_permille)
        found.users.setdefault(tenant, []).append(user)


class _Sample(NamedTuple):
    at_ns: int
    busy_ns: int
    allowed_permille_ns: int


@dataclass
class BusyTime:
    """One tenant's use of one device's time, accumulated over polls."""

    busy_ns: int = 0
    allowed_permille_ns: int = 0  # the tenant's allowed share, integrated over time
    seen: dict[Process, int | None] = field(default_factory=dict)  # last known busy_ns of each
    samples: deque[_Sample] = field(default_factory=deque)
    allowed_permille: int = 0
    is_reported: bool = True  # False if the device does not report busy time per process

    def add(
        self,
        at_ns: int,
        users: Sequence[User],
        ended_busy_ns: dict[int, int],
        allowed_permille: int,
    ) -> None:
        """Records a poll with the tenant's `users` and, by pid, the totals of ended processes."""
        last = self.samples[-1] if self.samples else None
        if last is not None and at_ns <= last.at_ns:
            return
        passed_ns = at_ns - last.at_ns if last else 0
        gained_ns = 0
        for user in users:
            gained_ns += self._gained(user, passed_ns, first=last is None)
        now = {user.process: user.busy_ns for user in users}
        for process in self.seen.keys() - now.keys():
            total_ns, before_ns = ended_busy_ns.get(process.pid), self.seen[process]
            if total_ns is not None and before_ns is not None and total_ns > before_ns:
                gained_ns += min(passed_ns, total_ns - before_ns)
        self.seen = now
        self.is_reported = all(u.busy_ns is not None or u.busy_permille is not None for u in users)
        # Processes take turns on a device, so together they cannot use more than the time passed.
        self.busy_ns += min(passed_ns, gained_ns)
        self._sample(at_ns, passed_ns, allowed_permille)

    def add_unchanged(self, at_ns: int, allowed_permille: int) -> None:
        """Records a poll at which the users are unchanged and idle."""
        if self.samples and at_ns > self.samples[-1].at_ns:
            self._sample(at_ns, at_ns - self.samples[-1].at_ns, allowed_permille)

    def _sample(self, at_ns: int, passed_ns: int, allowed_permille: int) -> None:
        # The allowance changes several times a second: use the larger value of the interval's two
        # ends.
        self.allowed_permille_ns += max(self.allowed_permille, allowed_permille) * passed_ns
        self.allowed_permille = allowed_permille
        self.samples.append(_Sample(at_ns, self.busy_ns, self.allowed_permille_ns))
        while len(self.samples) > 2 and at_ns - self.samples[1].at_ns >= WINDOW_NS:
            self.samples.popleft()

    def _gained(self, user: User, passed_ns: int, *, first: bool) -> int:
        if user.busy_ns is None:
            return (user.busy_permille or 0) * passed_ns // 1000
        before_ns = self.seen.get(user.process)
        if before_ns is None:
            # A new process did all its work since the last poll, unless this is the first poll.
            before_ns = user.busy_ns if first else 0
        return max(0, min(passed_ns, user.busy_ns - before_ns))

    def window(self) -> tuple[int, int] | None:
        """Used and allowed permille over the window; None until it has been observed that long."""
        if not self.samples or self.samples[-1].at_ns - self.samples[0].at_ns < WINDOW_NS:
            return None
        return self._between(self.samples[0], self.samples[-1])

    def lately(self) -> tuple[int, int] | None:
        """Used and allowed permille since the previous poll; None if there was none."""
        return self._between(self.samples[-2], self.samples[-1]) if len(self.samples) > 1 else None

    @staticmethod
    def _between(first: _Sample, last: _Sample) -> tuple[int, int]:
        passed_ns = last.at_ns - first.at_ns
        return (
            (last.busy_ns - first.busy_ns) * 1000 // passed_ns,
            (last.allowed_permille_ns - first.allowed_permille_ns) // passed_ns,
        )
