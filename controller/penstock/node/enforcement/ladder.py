"""Escalation ladder: deny, throttle, suspend, terminate. It turns judgements into orders.

The shim denies. From there on, for each violation on a device:

    at once        throttle: the cores in the tenant's page are cut by the excess
    at once        suspend, for use that bypasses the shim: only the offending processes, by
                   SIGSTOP. They cannot correct themselves, and take co-tenants' time.
    after grace    the last step that the policy allows: suspend (the page's flag; SIGSTOP for
                   processes without shim) or terminate (SIGTERM, then SIGKILL)

A process that was ended for bypassing the shim and is started again gets no second SIGTERM: a
program that restarts after each one would keep the device for the whole grace each time. It gets
SIGKILL at once. After ROUNDS of that the tenant's other processes get SIGKILL too, as one of them
restarts it.

The grace runs while the excess is observed, and drains at the same rate while it is not: excess
that comes and goes adds up, rare excess does not. Time without polls (the agent was killed) does
not count either way.
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
LONGEST_LOOK_NS = 2_000_000_000  # the most time between two polls that counts as excess
CLEAR_NS = 2_000_000_000  # unobserved for so long, a violation is over
KILL_AFTER_NS = 5_000_000_000  # from SIGTERM to SIGKILL, or the grace where that is shorter
ROUNDS = 3  # restarts that bypass the shim, each killed at once; then the whole tenant is killed
FORGET_ROUNDS_NS = 600_000_000_000  # without another one


class Step(IntEnum):
    """Steps of the ladder. DENY: the shim refuses, the agent only reports."""

    NONE = 0
    DENY = 1
    THROTTLE = 2
    SUSPEND = 3
    TERMINATE = 4


@dataclass(frozen=True)
class Judgement:
    """One confirmed violation."""

    kind: Kind
    device: str  # UUID
    reason: str
    offenders: frozenset[Process] = frozenset()
    unshimmed: frozenset[Process] = (
        frozenset()
    )  # of the offenders: the page's flag does not stop them
    cut_permille: int = 0  # by how much the cores are cut when throttled


@dataclass
class Rung:
    """The escalation state of one violation."""

    last: Judgement
    over_ns: int = 0  # observed excess time, less what has drained; at most the grace
    seen_ns: int | None = None  # last observed; None: not since the agent's start
    step: Step = Step.NONE


@dataclass(frozen=True)
class Ending:
    """When a process got SIGTERM, and why."""

    at_ns: int
    judgement: Judgement


@dataclass(frozen=True)
class Change:
    """A step up (or, to NONE, back down), for the tenant's events."""

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
    step: Step  # the step reached

    def __str__(self) -> str:
        return f"{self.step.name.lower()}: {self.reason}"


@dataclass(frozen=True)
class Orders:
    """What must hold for the tenant now. Idempotent: every poll may carry it out again."""

    step: Step = Step.NONE
    cut_permille: dict[str, int] = field(default_factory=dict)  # by device
    restore: frozenset[str] = frozenset()  # devices whose cut ends
    suspend: bool = False  # the flag in the tenant's page
    unsuspend: bool = False  # we had set it before
    stop: frozenset[Process] = frozenset()
    resume: frozenset[Process] = frozenset()  # we had stopped them before
    terminate: frozenset[Process] = frozenset()
    kill: frozenset[Process] = frozenset()
    kill_all: bool = False  # all of the tenant's processes: one of them restarts the offenders
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
    rounds: int = 0  # recent polls that had to end processes for bypassing the shim
    round_ns: int = 0  # the last of them
    at_ns: int | None = None  # of the last poll; None: none since the agent's start

    def advance(self, now_ns: int, judgements: Iterable[Judgement], on_exceed: OnExceed) -> Orders:
        """One poll: takes in the current judgements and returns the orders."""
        before_ns, self.at_ns = self.at_ns, now_ns
        passed_ns = 0 if before_ns is None else min(max(0, now_ns - before_ns), LONGEST_LOOK_NS)
        changes: list[Change] = []
        found = {(one.kind, one.device): one for one in judgements}
        for key, judgement in found.items():
            changes += self._climb(key, judgement, before_ns, passed_ns, on_exceed)
            self.rungs[key].seen_ns = now_ns
        for key in self.rungs.keys() - found.keys():
            changes += self._descend(key, now_ns, passed_ns)
        return self._orders(now_ns, on_exceed, changes)

    def pardon(self, now_ns: int, on_exceed: OnExceed) -> Orders:
        """One poll that lifts all holds; processes that got SIGTERM still have to end.

        A violation that persists climbs again from the next poll on.
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
        """All processes in the ladder's state."""
        return {*self.stopped, *self.ending}.union(*(r.last.offenders for r in self.rungs.values()))

    def forget(self, ended: Iterable[Process]) -> None:
        """Drops processes that have ended."""
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
        """The violations that are not over, the gravest first."""
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
        """Whether the ladder has no state to keep."""
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
        if before_ns is not None and rung.seen_ns == before_ns:  # seen at both ends of that time
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
            rung.seen_ns = now_ns  # after a restart: give the judge time to confirm
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
    reason = "still running after SIGTERM and its grace" if killed else judgement.reason
    return Change(step, judgement.kind, judgement.device, reason, offenders, killed)


def _anew(judgement: Judgement, offenders: frozenset[Process], *, all_end: bool) -> Change:
    reason = f"restarted after others were ended for it: {judgement.reason}"
    if all_end:
        reason += "; all processes of the tenant are killed, as one of them would restart it"
    return Change(Step.TERMINATE, judgement.kind, judgement.device, reason, offenders, killed=True)


def _due(kind: Kind, over_ns: int, grace_ns: int, top: Step) -> Step:
    """The step for something that has been wrong for `over_ns`."""
    if kind == "mismatch":  # within its quota, and the shim may have charged too little
        return Step.DENY
    if kind == "suspended":  # queued work may run long: no reason to terminate
        return min(top, Step.SUSPEND)
    if over_ns >= grace_ns:
        return top
    return min(top, Step.SUSPEND if kind in PAST_SHIM else Step.THROTTLE)
