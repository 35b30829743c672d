"""Judge: a tenant's violations on a device, from the device's figures, its quota and its page.

    memory     the device reports more memory for the tenant than its quota
    cores      the tenant used more of the device's time than allowed, over WINDOW_NS and recently
    uncharged  a process of the tenant uses the device but has no slot
    damaged    the usage page cannot be read while the tenant uses the device
    suspended  the tenant uses the device while suspended, by a bypass or with a forged page
    mismatch   the device reports more memory for the tenant than is charged, but within its quota:
               a program bypasses the shim, or the shim charged too little. A mismatch is reported
               but has no other consequence.

A finding must persist before it is confirmed, because two sources are never read at the same
moment. A tenant can write anything into its usage page, but can hide no more than its quota this
way, because memory and cores are judged by the device's figures alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.devices.host_pids import inner_pid
from penstock.model import format_cores, human_memory
from penstock.node.enforcement.ladder import Judgement, Kind
from penstock.node.enforcement.measure import WINDOW_NS, BusyTime, User
from penstock.node.enforcement.process import (
    Process,
    command_line,
    is_alive,
    is_stopped,
    why_unshimmed,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.node.tenants.grant import DeviceGrant
    from penstock_shim.pages import UsageSnapshot

SLACK_BYTES = 64 << 20
SLACK_PERMILLE = 50
SUSPENDED_SLACK_PERMILLE = 20  # tolerance while no use is allowed
# How long a finding must last. Polls are about a second apart, so most findings need two polls. A
# finding of cores needs three, so that a kernel of up to a second, paid back later, never causes
# one. A program that bypasses the shim takes time from co-tenants, so its second poll comes sooner.
CONFIRM_NS: dict[Kind, int] = {
    "memory": 900_000_000,
    "cores": 1_800_000_000,
    "uncharged": 400_000_000,
    "damaged": 900_000_000,
    "mismatch": 900_000_000,
    "suspended": 2_800_000_000,  # queued work must be able to finish first
}
MIG_PREFIX = "MIG-"


@dataclass(frozen=True)
class Page:
    """A tenant's usage page, read after the devices were polled; `usage` is None if damaged."""

    usage: UsageSnapshot | None
    problem: str = ""


@dataclass(frozen=True)
class KnownHandshakes:
    """The processes that completed a handshake at the tenant's socket."""

    processes: frozenset[Process] = frozenset()
    since_ticks: int | None = None  # when the socket opened; None if there is none

    def words(self, process: Process) -> str:
        """A clause for a reason. A handshake proves nothing, as any program can send one."""
        if process in self.processes:
            return ", its slot is gone"
        if self.since_ticks is None or process.start_ticks <= self.since_ticks:
            return ""
        return " without a handshake"


NO_SOCKET = KnownHandshakes()
NO_USERS: Sequence[User] = ()


@dataclass
class Judge:
    """Judges one tenant on one device."""

    busy: BusyTime = field(default_factory=BusyTime)
    since_ns: dict[Kind, int] = field(default_factory=dict)
    slots: dict[Process, int] = field(default_factory=dict)  # own-namespace pids, cached from /proc
    totals_ns: dict[Process, int] = field(default_factory=dict)  # busy_ns at the previous poll
    caught: frozenset[Process] = frozenset()  # worked while suspended, until it is lifted
    users: Sequence[User] | None = None  # from the last poll, if it was clean

    def judge(
        self,
        now_ns: int,
        share: DeviceGrant,
        index: int,
        users: Sequence[User],
        page: Page,
        *,
        handshakes: KnownHandshakes = NO_SOCKET,
        suspended: bool = False,
    ) -> list[Judgement]:
        """The confirmed violations. `busy` must already have recorded this poll.

        Args:
            now_ns: The time, CLOCK_MONOTONIC.
            share: The tenant's granted share of the device.
            index: The device's index in the grant.
            users: The tenant's processes on the device.
            page: The tenant's usage page.
            handshakes: The processes that completed a handshake.
            suspended: Whether the tenant may use no device time now.
        """
        strangers = self._strangers(users, page)
        found = {
            one.kind: one
            for one in (
                self._of_page(share, users, page),
                self._of_slots(share, strangers, page, handshakes),
                self._of_charges(share, index, users, strangers, page),
                self._of_memory(share, users, strangers),
                self._of_suspension(share, users, suspended=suspended),
                self._of_cores(share, users, strangers, suspended=suspended),
            )
            if one is not None
        }
        self.since_ns = {kind: self.since_ns.get(kind, now_ns) for kind in found}
        self.users = None if found or suspended else users
        sure = [
            one for kind, one in found.items() if now_ns - self.since_ns[kind] >= CONFIRM_NS[kind]
        ]
        self.caught = frozenset(
            process for one in sure if one.kind == "suspended" for process in one.offenders
        )
        return sure

    def is_urgent(self, now_ns: int) -> bool:
        """Whether this poll found an unconfirmed violation that takes time from co-tenants."""
        since_ns = self.since_ns.get("uncharged")
        return since_ns is not None and now_ns - since_ns < CONFIRM_NS["uncharged"]

    def idle(self, at_ns: int, share: DeviceGrant) -> None:
        """Records a poll at which the tenant has no processes, and so no violations."""
        self.busy.add(at_ns, (), {}, share.cores_permille)
        self.since_ns.clear()
        self.caught = frozenset()
        self.users = NO_USERS

    def is_unchanged(self, users: Sequence[User]) -> bool:
        """Whether `judge` would again find nothing, given that the page is unchanged, too.

        If a device reports only recent use, an unchanged figure may stand for continuing work.
        """
        return users is self.users and not any(user.busy_permille for user in users)

    def add_unchanged(self, at_ns: int, share: DeviceGrant) -> None:
        """Records a poll that `is_unchanged`. An idle tenant borrows nothing."""
        self.busy.add_unchanged(at_ns, share.cores_permille)

    def doubts(self, share: DeviceGrant, index: int, users: Sequence[User], page: Page) -> bool:
        """Whether the device reports use that the page does not show."""
        strangers = self._strangers(users, page)
        return bool(strangers or self._of_charges(share, index, users, strangers, page))

    def undetectable(self, share: DeviceGrant) -> str | None:
        """A sentence that names the figures the device does not report, None if it reports all."""
        if self.busy.is_reported:
            return None
        why = (
            "a MIG instance has no utilisation per process"
            if share.uuid.startswith(MIG_PREFIX)
            else "its driver does not report the utilisation per process"
        )
        return f"use of cores that bypasses the shim is undetectable on device {share.index}: {why}"

    def _of_page(self, share: DeviceGrant, users: Sequence[User], page: Page) -> Judgement | None:
        working = [user for user in users if _does_something(user)]
        if page.usage is not None or not working:
            return None
        return _judgement(
            "damaged", share, f"its usage page is damaged ({page.problem})", working, working
        )

    def _of_slots(
        self, share: DeviceGrant, strangers: Sequence[User], page: Page, handshakes: KnownHandshakes
    ) -> Judgement | None:
        if not strangers or page.usage is None:
            return None
        first = strangers[0].process
        held = _sum(user.memory_bytes for user in strangers)
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        reason = (
            f"pid {first.pid}{more} uses it{handshakes.words(first)} but nothing is charged"
            f"{f' ({human_memory(held)})' if held else ''}: {why_unshimmed(first.pid)}"
        )
        return _judgement("uncharged", share, reason, strangers, strangers)

    def _of_charges(
        self,
        share: DeviceGrant,
        index: int,
        users: Sequence[User],
        strangers: Sequence[User],
        page: Page,
    ) -> Judgement | None:
        users = [user for user in users if user not in strangers]
        held = _sum(user.memory_bytes for user in users)
        if page.usage is None or held is None:
            return None
        charged = page.usage.devices[index].total_bytes
        if held <= charged + len(users) * share.context_bytes + SLACK_BYTES:
            return None
        reason = (
            f"the device reports {human_memory(held)} for processes that have the shim, but only "
            f"{human_memory(charged)} is charged"
        )
        return _judgement("mismatch", share, reason, _liable(users, page.usage, index), [])

    def _of_memory(
        self, share: DeviceGrant, users: Sequence[User], strangers: Sequence[User]
    ) -> Judgement | None:
        held = _sum(user.memory_bytes for user in users)
        # On real devices, the size of a context is an estimate.
        slack = SLACK_BYTES + len(users) * share.context_bytes // 4
        if held is None or held <= share.memory_bytes + slack:
            return None
        reason = (
            f"the device reports {human_memory(held)} for the tenant, whose quota is "
            f"{human_memory(share.memory_bytes)}"
        )
        return _judgement("memory", share, reason, strangers or users, strangers)

    def _of_suspension(
        self, share: DeviceGrant, users: Sequence[User], *, suspended: bool
    ) -> Judgement | None:
        """Processes that worked since the last poll; those caught earlier count even if stopped."""
        working = [user for user in users if self._works(user)]
        self.totals_ns = {user.process: user.busy_ns or 0 for user in users}
        if not suspended:
            return None
        offenders = [user for user in users if user in working or user.process in self.caught]
        if not offenders:
            return None
        pids = ", ".join(str(user.process.pid) for user in offenders[:8])
        reason = f"the tenant is suspended, but pid {pids} still used the device"
        return _judgement("suspended", share, reason, offenders, offenders, cut_permille=0)

    def _works(self, user: User) -> bool:
        if len(self.busy.samples) < 2:
            return False
        passed_ns = self.busy.samples[-1].at_ns - self.busy.samples[-2].at_ns
        if user.busy_ns is None:
            return (user.busy_permille or 0) > SUSPENDED_SLACK_PERMILLE
        gained_ns = user.busy_ns - self.totals_ns.get(user.process, user.busy_ns)
        return gained_ns * 1000 > SUSPENDED_SLACK_PERMILLE * passed_ns

    def _of_cores(
        self,
        share: DeviceGrant,
        users: Sequence[User],
        strangers: Sequence[User],
        *,
        suspended: bool,
    ) -> Judgement | None:
        if suspended and self.caught:  # a stopped process's queued work still runs
            users = [u for u in users if u.process in self.caught and not is_stopped(u.process)]
        window, lately = self.busy.window(), self.busy.lately()
        if window is None or lately is None or not self.busy.is_reported or not users:
            return None
        if any(used <= allowed + SLACK_PERMILLE for used, allowed in (window, lately)):
            return None
        used, allowed = window
        reason = (
            f"the tenant used {format_cores(used)} percent of the device's time in the last "
            f"{WINDOW_NS // 10**9} s, but {format_cores(allowed)} percent were allowed"
        )
        return _judgement(
            "cores", share, reason, strangers or users, strangers, cut_permille=used - allowed
        )

    def _strangers(self, users: Iterable[User], page: Page) -> list[User]:
        """Processes that use the device but have no slot."""
        slots = {slot.pid for slot in page.usage.slots} if page.usage else set()
        return [
            user
            for user in users
            if _does_something(user)
            and user.process.pid not in slots
            and self._inner(user.process) not in slots
            and is_alive(user.process)  # devices may still list a process that ended
        ]

    def _inner(self, process: Process) -> int:
        if process not in self.slots:
            if len(self.slots) > 4096:
                self.slots.clear()
            self.slots[process] = inner_pid(process.pid)
        return self.slots[process]


def _does_something(user: User) -> bool:
    """Whether the process uses the device; after cuInit alone it has neither slot nor charge."""
    return bool(user.memory_bytes or user.busy_ns or user.busy_permille)


def _liable(users: Sequence[User], usage: UsageSnapshot, index: int) -> Sequence[User]:
    """The processes that hold more than their slots show, all processes if none does."""
    charged = {slot.pid: slot.charged_bytes[index] for slot in usage.slots}
    liable = [
        user
        for user in users
        if user.memory_bytes is not None
        and user.memory_bytes
        > max(charged.get(user.process.pid, 0), charged.get(inner_pid(user.process.pid), 0))
        + SLACK_BYTES
    ]
    return liable or users


def _sum(amounts: Iterable[int | None]) -> int | None:
    """The sum of the known quantities, None if none is known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _judgement(
    kind: Kind,
    share: DeviceGrant,
    reason: str,
    offenders: Sequence[User],
    unshimmed: Sequence[User],
    *,
    cut_permille: int | None = None,
) -> Judgement:
    return Judgement(
        kind=kind,
        device=share.uuid,
        reason=f"device {share.index}: {reason}",
        offenders=_named(offenders),
        unshimmed=_named(unshimmed),
        # If the excess is not device time, cutting half of the share is a noticeable cut.
        cut_permille=share.cores_permille // 2 if cut_permille is None else cut_permille,
    )


def _named(users: Iterable[User]) -> frozenset[Process]:
    return frozenset(
        Process(user.process.pid, user.process.start_ticks, command_line(user.process.pid))
        for user in users
    )
