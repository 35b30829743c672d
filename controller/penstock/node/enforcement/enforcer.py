"""Enforcer: checks all tenants on all devices once a second, and applies the ladder's measures."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.node.enforcement.enforcement_event import Event, event_of
from penstock.node.enforcement.held_limits import Hold, cut_cores
from penstock.node.enforcement.judge import NO_USERS, Judge, KnownHandshakes, Page
from penstock.node.enforcement.ladder import PAST_SHIM
from penstock.node.enforcement.measure import DevicePoller, DeviceUsers, Foreign, User
from penstock.node.enforcement.members import Members
from penstock.node.enforcement.process import Process, hears, is_alive, send
from penstock.node.enforcement.saved_ladder import read_ladder, write_ladder
from penstock_shim.pages import (
    Limits,
    PageError,
    QuotaWriter,
    UsageSnapshot,
    read_quota,
    read_usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.devices import DeviceBackend
    from penstock.node.enforcement.ladder import Finding, Judgement, Ladder, Orders
    from penstock.node.enforcement.subject import Subject
    from penstock.node.tenants.grant import DeviceGrant
    from penstock.policy.schema import OnExceed

PERIOD_NS = 950_000_000  # minimum time between polls, as `step` may be called more often
URGENT_PERIOD_NS = 400_000_000  # minimum time after a poll that found a bypass of the shim


_NOTHING = Hold()


@dataclass(frozen=True)
class DeviceFigures:
    """A device's own figures for one tenant; None if the device does not report the figure."""

    device_uuid: str
    busy_ns: int | None  # cumulative since this enforcer started, including ended processes
    memory_bytes: int | None


@dataclass
class _Case:
    """The state of enforcement against one tenant between polls."""

    ladder: Ladder
    created: str  # creation time of the grant, as a new tenant may reuse the name
    judges: dict[str, Judge] = field(default_factory=dict)  # by device
    hold: Hold = field(default_factory=Hold)
    figures: tuple[DeviceFigures, ...] = ()  # from the last poll
    reported: set[str] = field(default_factory=set)  # reasons already reported
    subject: Subject | None = None  # from the last poll, like `usage`
    usage: UsageSnapshot | None = None


class Enforcer:
    """Enforces quotas by the figures of devices and kernel. Its state survives a restart."""

    def __init__(self, source: DeviceBackend) -> None:
        """`source`: the devices that the tenants' grants name."""
        self._members = Members()
        self._poller = DevicePoller(source, self._members)
        self._cases: dict[Path, _Case] = {}
        self._polled_ns: int | None = None
        self._pause_ns = PERIOD_NS
        self._subjects: Sequence[Subject] = ()
        self._pardoned: set[Path] = set()  # directories; any thread may add one
        self.foreign: tuple[Foreign, ...] = ()
        """Untracked processes on the devices, as of the last poll. They are not ended."""

    def is_due(self, now_ns: int) -> bool:
        """Whether a poll is due: about a second after the last poll, or sooner if it is urgent."""
        return self._polled_ns is None or now_ns - self._polled_ns >= self._pause_ns

    def step(
        self,
        now_ns: int,
        subjects: Sequence[Subject],
        usage: Mapping[str, UsageSnapshot] | None = None,
    ) -> list[Event]:
        """Polls the devices if a poll is due; returns and records what was done.

        Args:
            now_ns: The time, CLOCK_MONOTONIC.
            subjects: All tenants.
            usage: Usage pages that were just read, by tenant; the same object while a page is
                unchanged. Pages of other tenants are read here.

        Raises:
            PenstockError: the devices cannot be polled.
        """
        if not self.is_due(now_ns):
            return []
        self._polled_ns, self._pause_ns = now_ns, PERIOD_NS
        self._members.scan(now_ns, subjects)
        here = {one.tenant.directory: one.grant.created for one in subjects}
        for directory, case in list(self._cases.items()):
            if here.get(directory) != case.created:
                _release(case.ladder)
                del self._cases[directory]
                self._pardoned.discard(directory)
        self._subjects = subjects
        seen = self._poller.poll()
        self.foreign = tuple(one for device in seen.values() for one in device.foreign)
        events: list[Event] = []
        for subject in subjects:
            if self._skip_if_unchanged(subject, seen, (usage or {}).get(subject.name)):
                continue
            page = self._page(subject, seen, (usage or {}).get(subject.name))
            with contextlib.suppress(FileNotFoundError):  # the tenant has just ended
                events += self._check(now_ns, subject, seen, page)
        judges = (judge for case in self._cases.values() for judge in case.judges.values())
        urgent = any(judge.since_ns and judge.is_urgent(now_ns) for judge in judges)
        self._pause_ns = URGENT_PERIOD_NS if urgent else PERIOD_NS
        return events

    def pardon(self, directory: Path) -> None:
        """Lifts all holds on the tenant in `directory`, at an immediate poll. Thread-safe."""
        case = self._cases.get(directory)
        if case is not None and not case.ladder.is_idle:
            self._pardoned.add(directory)
            self._pause_ns = 0

    def hold(self, directory: Path) -> Hold | None:
        """The hold on a tenant, which the writer of its quota page must apply; None if not held."""
        case = self._cases.get(directory)
        return case.hold if case and case.hold != _NOTHING else None

    def figures(self, directory: Path) -> tuple[DeviceFigures, ...]:
        """The devices' last figures for the tenant in `directory`; lost devices are left out."""
        case = self._cases.get(directory)
        return case.figures if case else ()

    def findings(self, directory: Path) -> tuple[Finding, ...]:
        """The violations found for the tenant in `directory` at the last poll."""
        case = self._cases.get(directory)
        return case.ladder.findings if case else ()

    def members(self, tenant: str) -> list[Process]:
        """All processes of the tenant, as of the last poll."""
        return self._members.of(tenant)

    def tenant_of(self, process: Process) -> str | None:
        """The tenant of a process, as of the last poll; None if it has none. Thread-safe."""
        return self._members.owner_of(process)

    def count(self, tenant: str) -> int | None:
        """The number of the tenant's processes at the last poll; None if unknown."""
        return self._members.count(tenant)

    def _page(
        self, subject: Subject, seen: Mapping[str, DeviceUsers], usage: UsageSnapshot | None
    ) -> Page:
        """The usage page, read again if the devices report more than `usage` shows."""
        if usage is not None and not self._doubts(subject, seen, Page(usage)):
            return Page(usage)
        try:
            return Page(read_usage(subject.tenant.usage_page))
        except PageError as error:
            return Page(None, error.what)

    def _doubts(self, subject: Subject, seen: Mapping[str, DeviceUsers], page: Page) -> bool:
        case = self._cases.get(subject.tenant.directory)
        judges = case.judges if case else {}
        return any(
            (judges.get(share.uuid) or Judge()).doubts(share, index, users, page)
            for index, share in enumerate(subject.grant.devices)
            if (device := seen.get(share.uuid)) and (users := device.users.get(subject.name))
        )

    def _skip_if_unchanged(
        self, subject: Subject, seen: Mapping[str, DeviceUsers], usage: UsageSnapshot | None
    ) -> bool:
        """Whether nothing changed since a clean poll; if so, records this poll as clean."""
        case = self._cases.get(subject.tenant.directory)
        if (
            case is None
            or case.subject is not subject
            or usage is None
            or case.usage is not usage
            or subject.suspended
            or not case.ladder.is_idle
            or case.ladder.killed
        ):
            return False
        unchanged = []
        for share in subject.grant.devices:
            device, judge = seen.get(share.uuid), case.judges.get(share.uuid)
            if device is None or judge is None:
                return False
            if not judge.is_unchanged(device.users.get(subject.name, NO_USERS)):
                return False
            unchanged.append((judge, device.at_ns, share))
        for judge, at_ns, share in unchanged:
            judge.add_unchanged(at_ns, share)
        return True

    def _check(
        self, now_ns: int, subject: Subject, seen: Mapping[str, DeviceUsers], page: Page
    ) -> list[Event]:
        directory = subject.tenant.directory
        case = self._cases.get(directory)
        if case is None:
            case = _Case(read_ladder(directory), subject.grant.created)
            self._cases[directory] = case
        if case.ladder.killed or not case.ladder.is_idle:
            case.ladder.forget(one for one in case.ladder.processes if not is_alive(one))
        case.subject, case.usage = subject, page.usage
        judgements, events = self._judge(now_ns, subject, case, seen, page)
        if directory in self._pardoned:
            self._pardoned.discard(directory)
            orders = case.ladder.pardon(now_ns, _policy(subject))
            events += self._carry_out(subject, case, orders)
        elif not judgements and case.ladder.is_idle:
            case.hold = Hold()
            orders = None
        else:
            orders = case.ladder.advance(now_ns, judgements, _policy(subject))
            events += self._carry_out(subject, case, orders)
        for event in events:
            event.record(directory)
        return events

    def _judge(
        self,
        now_ns: int,
        subject: Subject,
        case: _Case,
        seen: Mapping[str, DeviceUsers],
        page: Page,
    ) -> tuple[list[Judgement], list[Event]]:
        judgements, events = [], []
        figures = []
        # Copies of its memory to the host and back are no work of the tenant's.
        moves = subject.grant.memory in {"releasing", "restoring"}
        suspended = (subject.suspended and not moves) or case.ladder.suspended
        for index, share in enumerate(subject.grant.devices):
            device = seen.get(share.uuid)
            if device is None:
                continue  # there are no figures, as the device is lost or not of this machine
            users = device.users.get(subject.name, NO_USERS)
            judge = case.judges.setdefault(share.uuid, Judge())
            if not users and not judge.busy.seen:
                judge.idle(device.at_ns, share)
                figures.append(_figures(share, judge, users))
                continue
            allowed_permille = 0 if suspended else _allowed_permille(subject, share)
            judge.busy.add(device.at_ns, users, device.ended_busy_ns, allowed_permille)
            handshakes = KnownHandshakes(subject.handshake, subject.listens_since_ticks)
            judgements += judge.judge(
                now_ns, share, index, users, page, handshakes=handshakes, suspended=suspended
            )
            figures.append(_figures(share, judge, users))
            lacking = judge.undetectable(share)
            if lacking and lacking not in case.reported:
                case.reported.add(lacking)
                events.append(Event(subject.name, "undetectable", lacking, share.uuid, "cores"))
        case.figures = tuple(figures)
        return judgements, events

    def _carry_out(self, subject: Subject, case: _Case, orders: Orders) -> list[Event]:
        """Saves the intended actions, carries them out, and only then drops the old ones."""
        ladder = case.ladder
        events = [event_of(subject.name, change) for change in orders.changes]
        over = (ladder.stopped, ladder.suspended, ladder.cut)
        ladder.stopped |= orders.resume
        ladder.suspended |= orders.unsuspend
        ladder.cut |= orders.restore
        events += self._save(subject, case)
        case.hold = Hold(orders.cut_permille, suspended=orders.suspend)
        try:
            _write_page(subject, orders)
        except (PageError, ValueError) as error:
            events += _once(case, subject.name, f"cannot write its quota page: {error}")
        for processes, signals in (
            (orders.stop, (signal.SIGSTOP,)),
            (orders.resume, (signal.SIGCONT,)),
            *_endings(orders.terminate),
            (orders.kill, (signal.SIGKILL,)),
        ):
            events += self._signal(subject, case, processes, signals)
        if orders.kill_all:
            everyone = frozenset(self._members.of(subject.name))
            for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped processes cannot start others
                events += self._signal(subject, case, everyone, (number,))
        if (ladder.stopped, ladder.suspended, ladder.cut) != over or ladder.is_idle:
            ladder.stopped, ladder.suspended, ladder.cut = over
            events += self._save(subject, case)
        return events

    @staticmethod
    def _save(subject: Subject, case: _Case) -> list[Event]:
        try:
            write_ladder(subject.tenant.directory, case.ladder)
        except FileNotFoundError:
            raise
        except OSError as error:
            return _once(
                case,
                subject.name,
                f"cannot save what was done ({error.strerror}): a restarted agent will not know",
            )
        return []

    @staticmethod
    def _signal(
        subject: Subject,
        case: _Case,
        processes: frozenset[Process],
        signals: tuple[signal.Signals, ...],
    ) -> list[Event]:
        return [
            event
            for process in sorted(processes)
            for event in _signal_one(subject, case, process, signals)
        ]


def _figures(share: DeviceGrant, judge: Judge, users: Sequence[User]) -> DeviceFigures:
    busy_ns = judge.busy.busy_ns if judge.busy.is_reported else None
    memory_bytes = 0
    for user in users:
        if user.memory_bytes is None:
            return DeviceFigures(share.uuid, busy_ns, None)
        memory_bytes += user.memory_bytes
    return DeviceFigures(share.uuid, busy_ns, memory_bytes)


def _endings(
    processes: frozenset[Process],
) -> Iterator[tuple[frozenset[Process], tuple[signal.Signals, ...]]]:
    """SIGTERM for each process, followed by SIGCONT if SIGTERM has an effect on the process."""
    hearing = frozenset(one for one in processes if hears(one, signal.SIGTERM))
    yield hearing, (signal.SIGTERM, signal.SIGCONT)
    yield processes - hearing, (signal.SIGTERM,)


def _signal_one(
    subject: Subject, case: _Case, process: Process, signals: tuple[signal.Signals, ...]
) -> list[Event]:
    try:
        send(process, *signals)
    except OSError as error:  # no permission, or a kernel older than 5.3
        why = f"cannot send {signals[0].name} to {process}: {error.strerror}"
        return _once(case, subject.name, why)
    return []


def _once(case: _Case, tenant: str, reason: str) -> list[Event]:
    if reason in case.reported:
        return []
    case.reported.add(reason)
    return [Event(tenant, "cannot-act", reason)]


def _release(ladder: Ladder) -> None:
    """Releases the processes of a removed tenant: kills offenders, and resumes the others."""
    past = {
        one
        for rung in ladder.rungs.values()
        if rung.last.kind != "suspended"
        for one in (rung.last.offenders if rung.last.kind in PAST_SHIM else rung.last.unshimmed)
    }
    for process in ladder.stopped | ladder.ending.keys():
        over = process in past or process in ladder.ending
        with contextlib.suppress(OSError):  # without permission, we cannot have stopped it either
            send(process, signal.SIGKILL if over else signal.SIGCONT)


def _policy(subject: Subject) -> OnExceed:
    """The tenant's policy; `suspend` or stricter while suspended, as some ignore their page."""
    if not subject.suspended or subject.on_exceed.measured in {"suspend", "terminate"}:
        return subject.on_exceed
    return subject.on_exceed.model_copy(update={"measured": "suspend"})


def _allowed_permille(subject: Subject, share: DeviceGrant) -> int:
    """The cores allowed now: the share, or more if an elastic tenant has borrowed cores."""
    if subject.grant.mode != "elastic":
        return share.cores_permille
    try:
        limits = read_quota(subject.tenant.quota_page).limits
    except PageError:
        return share.cores_permille
    lent = (limit.allowance for limit in limits.devices if limit.uuid == share.uuid)
    return max(share.cores_permille, *lent, 0)


def _write_page(subject: Subject, orders: Orders) -> None:
    """Writes the hold into the quota page. Raises `PageError` if the page cannot be written."""
    if not (orders.cut_permille or orders.restore or orders.suspend or orders.unsuspend):
        return
    granted = {share.uuid: share.cores_permille for share in subject.grant.devices}

    def edit(limits: Limits) -> Limits:
        devices = []
        for limit in limits.devices:
            cores = granted.get(limit.uuid, limit.cores_permille)
            if limit.uuid in orders.cut_permille:
                cores = cut_cores(cores, orders.cut_permille[limit.uuid])
            elif limit.uuid not in orders.restore:
                devices.append(limit)
                continue
            devices.append(
                dataclasses.replace(limit, cores_permille=cores, allowance_permille=None)
            )
        suspended = limits.suspended or orders.suspend
        if orders.unsuspend:
            suspended = subject.suspended
        return dataclasses.replace(limits, devices=tuple(devices), suspended=suspended)

    with QuotaWriter.open(subject.tenant.quota_page) as writer:
        if edit(writer.limits) != writer.limits:
            writer.change(edit)
