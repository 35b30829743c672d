"""Escalation ladder, which turns judgements into orders: deny, throttle, suspend, terminate.

The shim denies. For each further violation on a device, the ladder orders:

    at once        throttle: the cores in the tenant's quota page are cut by the excess
    at once        suspend, for use that bypasses the shim, but only the offending processes, with
                   SIGSTOP: they cannot correct themselves, and take time from co-tenants
    after grace    the last step that the policy allows: suspend (by the page's flag, or by SIGSTOP
                   for processes without the shim) or terminate (SIGTERM, then SIGKILL)

A process that was ended for bypassing the shim and is started again gets SIGKILL at once: with a
second SIGTERM, a program that restarts each time would keep the device for another grace. After
ROUNDS such restarts, the tenant's other processes get SIGKILL, too, since one of them restarts the
offender.

The time towards the grace runs while the excess is observed, and drains at the same rate while it
is not, so that intermittent excess adds up but rare excess does not. Time without polls, such as
after the agent was killed, does not count either way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.node.enforcement.process import Process
    from penstock.policy.schema import OnExceed

Kind = Literal["memory", "cores", "uncharged", "damaged", "mismatch", "suspended"]
KINDS: frozenset[Kind] = frozenset(get_args(Kind))
PAST_SHIM: frozenset[Kind] = frozenset({"uncharged", "damaged", "suspended"})
LONGEST_GAP_NS = 2_000_000_000  # the longest time between two polls that counts as excess
CLEAR_NS = 2_000_000_000  # a violation not observed for this long is over
KILL_AFTER_NS = 5_000_000_000  # from SIGTERM to SIGKILL, unless the grace is shorter
ROUNDS = 3  # restarts that bypass the shim, after which the whole tenant is killed
FORGET_ROUNDS_NS = 600_000_000_000  # time without another round after which rounds are forgotten


class Step(IntEnum):
    """Steps of the ladder. At DENY the shim refuses, and the agent only reports."""

    NONE = 0
    DENY = 1
    THROTTLE = 2
    SUSPEND = 3
    TERMINATE = 4


@dataclass(frozen=True)
class Judgement:
    """One confirmed violation of a tenant on a device."""

    kind: Kind
    device: str  # UUID
    reason: str
    offenders: frozenset[Process] = frozenset()
    # Those offenders that the flag in the page does not stop.
    unshimmed: frozenset[Process] = frozenset()
    cut_permille: int = 0  # by how much the cores are cut when throttled


@dataclass
class Rung:
    """The escalation state of one violation."""

    last: Judgement
    over_ns: int = 0  # observed excess time minus drained time; at most the grace
    seen_ns: int | None = None  # last observed; None if not since the agent started
    step: Step = Step.NONE


@dataclass(frozen=True)
class Ending:
    """When a process was sent SIGTERM, and why."""

    at_ns: int
    judgement: Judgement


@dataclass(frozen=True)
class Change:
    """A step up (or, with NONE, back down), for the tenant's events."""

    step: Step
    kind: Kind
    device: str
    reason: str
    offenders: frozenset[Process] = frozenset()
    killed: bool = False  # SIGKILL after an ineffective SIGTERM


@dataclass(frozen=True)
class Finding:
    """A current violation of a tenant."""

    kind: Kind
    device: str  # UUID
    reason: str
    step: Step  # the step that it has reached

    def __str__(self) -> str:
        return f"{self.step.name.lower()}: {self.reason}"


@dataclass(frozen=True)
class Orders:
    """The measures to apply to a tenant now. They are idempotent, so each poll may repeat them."""

    step: Step = Step.NONE
    cut_permille: dict[str, int] = field(default_factory=dict)  # by device
    restore: frozenset[str] = frozenset()  # devices whose cut is to end
    suspend: bool = False  # the flag in the tenant's page
    unsuspend: bool = False  # clears the flag that we set before
    stop: frozenset[Process] = frozenset()
    resume: frozenset[Process] = frozenset()  # processes that we stopped before
    terminate: frozenset[Process] = frozenset()
    kill: frozenset[Process] = frozenset()
    kill_all: bool = False  # kill all of the tenant's processes, as one of them restarts offenders
    changes: tuple[Change, ...] = ()


Key = tuple[Kind, str]


@dataclass
class Ladder:
    """The ladder of one tenant. Times are CLOCK_MONOTONIC nanoseconds."""

    rungs: dict[Key, Rung] = field(default_factory=dict)
    cut: frozenset[str] = frozenset()  # devices
    suspended: bool = False
    stopped: frozenset[Process] = frozenset()
    ending: dict[Process, Ending] = field(default_factory=dict)
    killed: set[Process] = field(default_factory=set)
    rounds: int = 0  # recent polls that ended processes for bypassing the shim
    round_ns: int = 0  # time of the last such poll
    at_ns: int | None = None  # time of the last poll; None if none since the agent started

    def advance(self, now_ns: int, judgements: Iterable[Judgement], on_exceed: OnExceed) -> Orders:
        """Processes one poll with its current judgements; returns the orders."""
        before_ns, self.at_ns = self.at_ns, now_ns
        passed_ns = 0 if before_ns is None else min(max(0, now_ns - before_ns), LONGEST_GAP_NS)
        changes: list[Change] = []
        found = {(one.kind, one.device): one for one in judgements}
        for key, judgement in found.items():
            changes += self._climb(key, judgement, before_ns, passed_ns, on_exceed)
            self.rungs[key].seen_ns = now_ns
        for key in self.rungs.keys() - found.keys():
            changes += self._descend(key, now_ns, passed_ns)
        return self._orders(now_ns, on_exceed, changes)

    def pardon(self, now_ns: int, on_exceed: OnExceed) -> Orders:
        """Processes one poll that lifts all holds; processes sent SIGTERM still have to end.

        A violation that persists escalates again from the next poll on.
        """
        self.at_ns = now_ns
        changes = [
            Change(Step.NONE, kind, device, "lifted by an administrator")
            for (kind, device), rung in self.rungs.items()
            if rung.step > Step.NONE
        ]
        self.rungs.clear()
        return self._orders(now_ns, on_exceed, changes)

    @property
    def processes(self) -> set[Process]:
        """All processes that the ladder's state contains."""
        return {*self.stopped, *self.ending}.union(*(r.last.offenders for r in self.rungs.values()))

    def forget(self, ended: Iterable[Process]) -> None:
        """Removes ended processes from the ladder's state."""
        gone = frozenset(ended)
        self.stopped -= gone
        self.killed -= gone
        self.ending = {one: since for one, since in self.ending.items() if one not in gone}
        for rung in self.rungs.values():
            rung.last = replace(
                rung.last,
                offenders=rung.last.offenders - gone,
                unshimmed=rung.last.unshimmed - gone,
            )

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The violations that are not over, most severe first."""
        if not self.rungs:
            return ()
        found = [
            Finding(rung.last.kind, rung.last.device, rung.last.reason, rung.step)
            for rung in self.rungs.values()
            if rung.step > Step.NONE
        ]
        return tuple(sorted(found, key=lambda one: (-one.step, one.kind, one.device)))

    @property
    def is_idle(self) -> bool:
        """Whether the ladder has no state worth keeping."""
        return not (
            self.rungs or self.cut or self.suspended or self.stopped or self.ending or self.rounds
        )

    def _climb(
        self,
        key: Key,
        judgement: Judgement,
        before_ns: int | None,
        passed_ns: int,
        on_exceed: OnExceed,
    ) -> list[Change]:
        rung = self.rungs.setdefault(key, Rung(judgement))
        if before_ns is not None and rung.seen_ns == before_ns:  # observed at both ends
            rung.over_ns = min(on_exceed.grace, rung.over_ns + passed_ns)
        rung.last = judgement
        before = rung.step
        top = Step[on_exceed.measured.upper()]
        rung.step = min(top, max(before, _due(judgement.kind, rung.over_ns, on_exceed.grace, top)))
        if rung.step <= before:
            return []
        return [_change(rung.step, judgement, judgement.offenders)]

    def _descend(self, key: Key, now_ns: int, passed_ns: int) -> list[Change]:
        rung = self.rungs[key]
        if rung.seen_ns is None:
            rung.seen_ns = now_ns  # after a restart, leave the judge time to confirm it
        if now_ns - rung.seen_ns < CLEAR_NS:
            return []
        rung.over_ns = max(0, rung.over_ns - passed_ns)
        before, rung.step = rung.step, Step.NONE
        if rung.over_ns == 0:
            del self.rungs[key]
        if before is Step.NONE:
            return []
        kind, device = key
        return [Change(Step.NONE, kind, device, "it is over")]

    def _orders(self, now_ns: int, on_exceed: OnExceed, changes: list[Change]) -> Orders:
        cut: dict[str, int] = {}
        suspend = False
        stop: set[Process] = set()
        terminate: set[Process] = set()
        anew: set[Process] = set()
        past_shim = False
        if now_ns - self.round_ns >= FORGET_ROUNDS_NS:
            self.rounds = self.round_ns = 0
        for rung in sorted(self.rungs.values(), key=lambda one: one.last.kind not in PAST_SHIM):
            judgement = rung.last
            if rung.step >= Step.THROTTLE:
                cut[judgement.device] = max(cut.get(judgement.device, 0), judgement.cut_permille)
            if rung.step is Step.SUSPEND:
                past = judgement.kind in PAST_SHIM
                stop |= judgement.offenders if past else judgement.unshimmed
                suspend |= not past
            elif rung.step is Step.TERMINATE and (
                fresh := judgement.offenders - self.ending.keys()
            ):
                self.ending.update(dict.fromkeys(fresh, Ending(now_ns, judgement)))
                past_shim |= judgement.kind in PAST_SHIM
                if judgement.kind in PAST_SHIM and self.rounds:
                    anew |= fresh
                    changes.append(_anew(judgement, fresh, all_end=self.rounds > ROUNDS))
                    continue
                terminate |= fresh
                if not any(judgement.offenders == one.offenders for one in changes):
                    changes.append(_change(Step.TERMINATE, judgement, fresh))  # it was restarted
        wait_ns = min(KILL_AFTER_NS, on_exceed.grace)
        late = {one for one, since in self.ending.items() if now_ns - since.at_ns >= wait_ns}
        kill = frozenset((late | anew) - terminate)
        kill_all = bool(anew) and self.rounds > ROUNDS
        if past_shim:
            self.rounds, self.round_ns = self.rounds + 1, now_ns
        changes += [
            _change(Step.TERMINATE, self.ending[one].judgement, frozenset({one}), killed=True)
            for one in sorted(kill - self.killed - anew)
        ]
        self.killed |= kill
        before, self.stopped = self.stopped, frozenset(stop - self.ending.keys())
        was_cut, self.cut = self.cut, frozenset(cut)
        was_suspended, self.suspended = self.suspended, suspend
        return Orders(
            step=max((rung.step for rung in self.rungs.values()), default=Step.NONE),
            cut_permille=cut,
            restore=was_cut - self.cut,
            suspend=suspend,
            unsuspend=was_suspended and not suspend,
            stop=self.stopped,
            resume=before - self.stopped - self.ending.keys(),
            terminate=frozenset(terminate),
            kill=kill,
            kill_all=kill_all,
            changes=tuple(changes),
        )


def _change(
    step: Step, judgement: Judgement, offenders: frozenset[Process], *, killed: bool = False
) -> Change:
    reason = "still running after SIGTERM and the grace period" if killed else judgement.reason
    return Change(step, judgement.kind, judgement.device, reason, offenders, killed)


def _anew(judgement: Judgement, offenders: frozenset[Process], *, all_end: bool) -> Change:
    reason = f"restarted after other processes were ended for the same reason: {judgement.reason}"
    if all_end:
        reason += "; all processes of the tenant are killed, as one of them would restart it"
    return Change(Step.TERMINATE, judgement.kind, judgement.device, reason, offenders, killed=True)


def _due(kind: Kind, over_ns: int, grace_ns: int, top: Step) -> Step:
    """The step for a violation that has lasted for `over_ns`."""
    if kind == "mismatch":  # within the quota, and perhaps charged too little by the shim
        return Step.DENY
    if kind == "suspended":  # queued work may run long, so this is no reason to terminate
        return min(top, Step.SUSPEND)
    if over_ns >= grace_ns:
        return top
    return min(top, Step.SUSPEND if kind in PAST_SHIM else Step.THROTTLE)
