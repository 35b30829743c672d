"""Judgement of a window: whether its tenants were satisfied, and how evenly they proceeded."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.scheduling.slices.demand import DemandKey
    from penstock.scheduling.slices.plan import Plan
    from penstock.scheduling.slices.record import Record


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of a plan.

    `blocked_ns`: planned work that was asked for and unfinished at the window's end, of those that
    have any, by the demand's key. `unscheduled`: y_p, for each round p of the plan how many of its
    slices were due and got no device.
    """

    planned_ns: int
    blocked_ns: Mapping[DemandKey, int]
    unscheduled: tuple[int, ...]

    @property
    def is_satisfied(self) -> bool:
        """Whether no planned work is left unfinished."""
        return not self.blocked_ns

    @property
    def blocking_rate(self) -> float:
        """Blocked over planned work, 0 to 1; 0 if nothing was planned."""
        return sum(self.blocked_ns.values()) / self.planned_ns if self.planned_ns else 0.0

    @property
    def variance(self) -> float:
        """s², the variance of y_p over the rounds; 0 without rounds."""
        rounds, total = len(self.unscheduled), sum(self.unscheduled)
        if not rounds:
            return 0.0
        # (1/P) Σ (y_p - ȳ)², with whole numbers up to the division.
        squares = sum(count * count for count in self.unscheduled)
        return (rounds * squares - total * total) / (rounds * rounds)


def judge(plan: Plan, record: Record) -> Judgement:
    """Compares a plan with what was carried out of it.

    What a tenant ran beyond its plan does not count, and what was planned and not asked for is not
    blocked. Of a blocked tenant as many slices are unscheduled as its blocked work takes: the first
    of its planned ones that had no device.
    """
    lengths_ns = _slice_lengths_ns(plan)
    given_ns, numbers = _service_of(plan, record)
    first_rounds = _first_rounds(plan)
    blocked_ns: dict[DemandKey, int] = {}
    unscheduled = [0] * plan.rounds
    for one in plan.demands:
        short_ns = one.duration_ns - given_ns.get(one.key, 0)
        blocked = min(short_ns, record.left_ns.get(one.key, 0))
        if blocked <= 0:
            continue
        blocked_ns[one.key] = blocked
        slice_ns = lengths_ns[one.key]
        had = numbers.get(one.key, set())
        missing = (at for at in range(1, one.slices(slice_ns) + 1) if at not in had)
        for number in islice(missing, -(-blocked // slice_ns)):
            unscheduled[first_rounds[one.key] + number - 2] += 1
    return Judgement(plan.planned_ns, blocked_ns, tuple(unscheduled))


def _slice_lengths_ns(plan: Plan) -> dict[DemandKey, int]:
    """The slice length by which each demand was cut."""
    lengths_ns = {device.device: device.slice_ns for device in plan.devices}
    shared_ns = plan.devices[0].slice_ns
    return {one.key: lengths_ns.get(one.device, shared_ns) for one in plan.demands}


def _service_of(
    plan: Plan, record: Record
) -> tuple[dict[DemandKey, int], dict[DemandKey, set[int]]]:
    """What each demand was given within the window, and the numbers of its slices with a device."""
    given_ns: dict[DemandKey, int] = {}
    numbers: dict[DemandKey, set[int]] = {}
    for device, tenant, number, start_ns, length_ns in record.ran:
        within_ns = min(start_ns + length_ns, plan.window_ns) - start_ns
        if start_ns < plan.window_ns:
            key = plan.key(device, tenant)
            given_ns[key] = given_ns.get(key, 0) + within_ns
            numbers.setdefault(key, set()).add(number)
    return given_ns, numbers


def _first_rounds(plan: Plan) -> dict[DemandKey, int]:
    """The round of each demand's first slice; each further slice is one round later."""
    return {
        plan.key(device.device, turn.tenant): turn.round
        for device in plan.devices
        for lap in device.laps
        for turn in lap.turns
        if turn.number == 1
    }
