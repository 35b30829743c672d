"""Judge: violations of a tenant on a device, by the device's figures, its quota and its page.

    memory     the device reports more memory for it than its quota
    cores      it took more of the device's time than allowed, over WINDOW_NS and recently
    uncharged  a process of it uses the device and has no slot
    damaged    its usage page cannot be read while it uses the device
    suspended  it uses the device while it is suspended: by a bypass, or with a forged page
    mismatch   the device reports more memory for it than is charged, within its quota: a program
               bypasses the shim, or the shim charged too little. It is reported, never punished.

A finding must last for a while before it is confirmed, as two sources are never read at the same
moment. A tenant can write anything into its usage page, but can hide at most its quota that way:
memory and cores are judged by the device alone.
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
SUSPENDED_SLACK_PERMILLE = 20  # tolerance where no use is allowed
# How long a finding must last. Polls are about a second apart: two of them, and three for cores, so
# that one kernel of up to a second, paid back later, is never a finding. A program that bypasses
# the shim takes time from co-tenants until it is stopped: there the second poll comes soon.
CONFIRM_NS: dict[Kind, int] = {
    "memory": 900_000_000,
    "cores": 1_800_000_000,
    "uncharged": 400_000_000,
    "damaged": 900_000_000,
    "mismatch": 900_000_000,
    "suspended": 2_800_000_000,  # queued work runs to its end first
}
MIG_PREFIX = "MIG-"


@dataclass(frozen=True)
class Page:
    """A tenant's usage page, read after the devices were polled. None: damaged."""

    usage: UsageSnapshot | None
    problem: str = ""


@dataclass(frozen=True)
class Shaken:
    """The processes that shook hands at the tenant's socket."""

    processes: frozenset[Process] = frozenset()
    since_ticks: int | None = None  # earlier processes could not; None: no socket

    def words(self, process: Process) -> str:
        """A clause for a reason. A handshake proves nothing: any program can send one."""
        if process in self.processes:
            return ", its slot is gone"
        if self.since_ticks is None or process.start_ticks <= self.since_ticks:
            return ""
        return " without a handshake"


NOBODY_LISTENS = Shaken()
NOBODY: Sequence[User] = ()


@dataclass
class Judge:
    """Judges one tenant on one device."""

    busy: BusyTime = field(default_factory=BusyTime)
    since_ns: dict[Kind, int] = field(default_factory=dict)
    slots: dict[Process, int] = field(default_factory=dict)  # inner pids, a cache of /proc reads
    totals_ns: dict[Process, int] = field(default_factory=dict)  # busy_ns as of the previous poll
    caught: frozenset[Process] = frozenset()  # worked while suspended; until that is lifted
    users: Sequence[User] | None = None  # of the last poll, if it was clean

    def judge(
        self,
        now_ns: int,
        share: DeviceGrant,
        index: int,
        users: Sequence[User],
        page: Page,
        *,
        shaken: Shaken = NOBODY_LISTENS,
        suspended: bool = False,
    ) -> list[Judgement]:
        """The confirmed violations. `busy` must have taken in this poll before.

        Args:
            now_ns: CLOCK_MONOTONIC.
            share: The share of the device that is granted.
            index: The device's index in the grant.
            users: The tenant's processes on the device.
            page: Its usage page.
            shaken: The processes that shook hands.
            suspended: Whether it may use no device time now.
        """
        strangers = self._strangers(users, page)
        found = {
            one.kind: one
            for one in (
                self._of_page(share, users, page),
                self._of_slots(share, strangers, page, shaken),
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
        """Takes in a poll without processes of the tenant: there is no violation."""
        self.busy.add(at_ns, (), {}, share.cores_permille)
        self.since_ns.clear()
        self.caught = frozenset()
        self.users = NOBODY

    def may_rest(self, users: Sequence[User]) -> bool:
        """Whether `judge` would find nothing, as at the previous poll, with an unchanged page.

        Recent use, where a device reports only that, may be continuing work.
        """
        return users is self.users and not any(user.busy_permille for user in users)

    def rest(self, at_ns: int, share: DeviceGrant) -> None:
        """Takes in such a poll. An idle tenant borrows nothing."""
        self.busy.rest(at_ns, share.cores_permille)

    def doubts(self, share: DeviceGrant, index: int, users: Sequence[User], page: Page) -> bool:
        """Whether the device reports use that the page does not show."""
        strangers = self._strangers(users, page)
        return bool(strangers or self._of_charges(share, index, users, strangers, page))

    def undetectable(self, share: DeviceGrant) -> str | None:
        """What the device does not report, as a sentence; None: it reports all that is judged."""
        if self.busy.is_told:
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
        self, share: DeviceGrant, strangers: Sequence[User], page: Page, shaken: Shaken
    ) -> Judgement | None:
        if not strangers or page.usage is None:
            return None
        first = strangers[0].process
        held = _sum(user.memory_bytes for user in strangers)
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        reason = (
            f"pid {first.pid}{more} uses it{shaken.words(first)} and nothing of that is charged"
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
            f"it holds {human_memory(held)} for processes that have the shim and "
            f"{human_memory(charged)} are charged"
        )
        return _judgement("mismatch", share, reason, _liable(users, page.usage, index), [])

    def _of_memory(
        self, share: DeviceGrant, users: Sequence[User], strangers: Sequence[User]
    ) -> Judgement | None:
        held = _sum(user.memory_bytes for user in users)
        # The size of a context is an estimate on real devices.
        slack = SLACK_BYTES + len(users) * share.context_bytes // 4
        if held is None or held <= share.memory_bytes + slack:
            return None
        reason = (
            f"the device holds {human_memory(held)} for it, its quota is "
            f"{human_memory(share.memory_bytes)}"
        )
        return _judgement("memory", share, reason, strangers or users, strangers)

    def _of_suspension(
        self, share: DeviceGrant, users: Sequence[User], *, suspended: bool
    ) -> Judgement | None:
        """Processes that worked since the previous poll; caught ones count even when stopped."""
        working = [user for user in users if self._works(user)]
        self.totals_ns = {user.process: user.busy_ns or 0 for user in users}
        if not suspended:
            return None
        offenders = [user for user in users if user in working or user.process in self.caught]
        if not offenders:
            return None
        pids = ", ".join(str(user.process.pid) for user in offenders[:8])
        reason = f"it is suspended, and pid {pids} went on using the device"
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
        if suspended and self.caught:  # queued work runs on while its process is stopped
            users = [u for u in users if u.process in self.caught and not is_stopped(u.process)]
        window, lately = self.busy.window(), self.busy.lately()
        if window is None or lately is None or not self.busy.is_told or not users:
            return None
        if any(used <= allowed + SLACK_PERMILLE for used, allowed in (window, lately)):
            return None
        used, allowed = window
        reason = (
            f"the device worked {format_cores(used)} percent of the last "
            f"{WINDOW_NS // 10**9} s for it, {format_cores(allowed)} were allowed"
        )
        return _judgement(
            "cores", share, reason, strangers or users, strangers, cut_permille=used - allowed
        )

    def _strangers(self, users: Iterable[User], page: Page) -> list[User]:
        """Processes that use the device and have no slot."""
        slots = {slot.pid for slot in page.usage.slots} if page.usage else set()
        return [
            user
            for user in users
            if _does_something(user)
            and user.process.pid not in slots
            and self._inner(user.process) not in slots
            and is_alive(user.process)  # devices still list one that has just ended, without a slot
        ]

    def _inner(self, process: Process) -> int:
        if process not in self.slots:
            if len(self.slots) > 4096:
                self.slots.clear()
            self.slots[process] = inner_pid(process.pid)
        return self.slots[process]


def _does_something(user: User) -> bool:
    """Whether it uses the device: after cuInit alone there is no slot and no charge."""
    return bool(user.memory_bytes or user.busy_ns or user.busy_permille)


def _liable(users: Sequence[User], usage: UsageSnapshot, index: int) -> Sequence[User]:
    """The processes that hold more than their slots show; all, if none does."""
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
    """The sum of the known quantities; None: none is known."""
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
        # Where the excess is not device time, half of the share is a noticeable cut.
        cut_permille=share.cores_permille // 2 if cut_permille is None else cut_permille,
    )


def _named(users: Iterable[User]) -> frozenset[Process]:
    return frozenset(
        Process(user.process.pid, user.process.start_ticks, command_line(user.process.pid))
        for user in users
    )
