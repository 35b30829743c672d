"""What the devices say of each tenant: memory and busy time, by pid alone.

Figures that a device does not tell are None, and no judgement is passed on them.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.devices import DeviceLostError
from penstock.enforce.process import Process, command_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.devices import Device, DeviceProcess, DeviceSource
    from penstock.enforce.members import Members

WINDOW_NS = 4_000_000_000  # over which cores are judged


class User(NamedTuple):
    """A living process on a device."""

    process: Process
    memory_bytes: int | None
    busy_ns: int | None  # since it began
    busy_permille: int | None  # lately, where only that is known


@dataclass(frozen=True)
class Foreign:
    """A process on a device that is no tenant's. It is told of, and left alone."""

    device: str
    process: Process
    memory_bytes: int | None


@dataclass
class Look:
    """All devices at about one time."""

    users: dict[tuple[str, str], list[User]] = field(default_factory=dict)  # by tenant and device
    ended_busy_ns: dict[str, dict[int, int]] = field(default_factory=dict)  # by device, then pid
    at_ns: dict[str, int] = field(default_factory=dict)  # by device that could be asked
    foreign: list[Foreign] = field(default_factory=list)


def look(source: DeviceSource, members: Members) -> Look:
    """Asks every device; one that is lost is left out.

    Raises `PenstockError`: the simulated machine is gone.
    """
    seen = Look()
    for device in source.devices():
        with contextlib.suppress(DeviceLostError):  # nothing is known of it, the others go on
            _look_at(device, source.processes(device), members, seen)
    return seen


def _look_at(
    device: Device, processes: Iterable[DeviceProcess], members: Members, seen: Look
) -> None:
    seen.at_ns[device.uuid] = 0
    ended = seen.ended_busy_ns.setdefault(device.uuid, {})
    for one in processes:
        seen.at_ns[device.uuid] = max(seen.at_ns[device.uuid], one.at_ns)
        if one.pid <= 0:
            continue  # where we cannot look
        if not one.alive:
            if one.busy_ns is not None:
                ended[one.pid] = one.busy_ns
            continue
        tenant = members.tenant_of(one.pid)
        process = members.process(one.pid)
        if process is None:
            continue  # it ended meanwhile
        if tenant is None:
            named = Process(process.pid, process.start_ticks, command_line(process.pid))
            seen.foreign.append(Foreign(device.uuid, named, one.memory_bytes))
            continue
        user = User(process, one.memory_bytes, one.busy_ns, one.busy_permille)
        seen.users.setdefault((tenant, device.uuid), []).append(user)


@dataclass(frozen=True)
class _Sample:
    at_ns: int
    busy_ns: int
    allowed_permille_ns: int


@dataclass
class BusyTime:
    """What one tenant's processes took of one device's time, added up from look to look."""

    busy_ns: int = 0
    allowed_permille_ns: int = 0  # what it might have taken
    seen: dict[Process, int | None] = field(default_factory=dict)  # busy_ns of each when last seen
    samples: deque[_Sample] = field(default_factory=deque)
    allowed_permille: int = 0
    is_told: bool = True  # False: the device does not tell how busy each process keeps it

    def add(
        self,
        at_ns: int,
        users: Sequence[User],
        ended_busy_ns: dict[int, int],
        allowed_permille: int,
    ) -> None:
        """Takes in a look: the tenant's `users`, and totals of ended processes by pid."""
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
        self.is_told = all(u.busy_ns is not None or u.busy_permille is not None for u in users)
        self.busy_ns += min(passed_ns, gained_ns)  # processes take turns on a device
        # What was allowed changes several times a second: of both ends of the time, the more.
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
            # All that a new process did it did since the last look; of the first look nobody knows.
            before_ns = user.busy_ns if first else 0
        return max(0, min(passed_ns, user.busy_ns - before_ns))

    def window(self) -> tuple[int, int] | None:
        """Used and allowed permille over the window; None: not watched for so long yet."""
        if not self.samples or self.samples[-1].at_ns - self.samples[0].at_ns < WINDOW_NS:
            return None
        return self._between(self.samples[0], self.samples[-1])

    def lately(self) -> tuple[int, int] | None:
        """Used and allowed permille since the look before."""
        return self._between(self.samples[-2], self.samples[-1]) if len(self.samples) > 1 else None

    @staticmethod
    def _between(first: _Sample, last: _Sample) -> tuple[int, int]:
        passed_ns = last.at_ns - first.at_ns
        return (
            (last.busy_ns - first.busy_ns) * 1000 // passed_ns,
            (last.allowed_permille_ns - first.allowed_permille_ns) // passed_ns,
        )
