"""Search for a better arrangement and slice length, after a window whose plan did not suffice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.scheduling.slices.carry_out import carry_out
from penstock.scheduling.slices.judge import judge
from penstock.scheduling.slices.length import LENGTHS_NS, check_lengths
from penstock.scheduling.slices.plan import by_part
from penstock.scheduling.slices.planner import Algorithm, make_plan
from penstock.scheduling.slices.record import Record
from penstock.scheduling.slices.supplier import Supplier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.judge import Judgement
    from penstock.scheduling.slices.plan import Plan
    from penstock.scheduling.slices.policies.policy import Policy

SEEDS = tuple(range(8))


@dataclass(frozen=True, slots=True)
class Candidate:
    """An arrangement and a slice length, what would have come of them, and why not or why."""

    algorithm: Algorithm
    judgement: Judgement
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The algorithm for the next windows of a device, or of all that serve together.

    `device`: empty: all. `candidates`: what was tried, the present algorithm first; empty if that
    one satisfied all.
    """

    device: str
    algorithm: Algorithm
    reason: str
    candidates: tuple[Candidate, ...]


def search(
    plan: Plan,
    record: Record,
    policy: Policy,
    asked: Iterable[Demand],
    suppliers: Iterable[Supplier],
    *,
    seeds: Sequence[int] = SEEDS,
    lengths_ns: Sequence[int] = LENGTHS_NS,
) -> tuple[Choice, ...]:
    """The choice for each device of a plan, or one for all that serve the same demands.

    `record`: what was carried out of the plan, by which it is checked. Only where it left planned
    work unfinished, all seeds with all lengths are carried out in virtual time, after the present
    algorithm, against what tenants `asked` for and the `suppliers` that were there (`carry_out`).
    The lowest blocking rate wins, of those the lowest variance, of those the first.

    Raises:
        PenstockError: a length is not above 0, or a device is listed twice at one time.
    """
    check_lengths(lengths_ns)
    ran, wanted, there = by_part(plan, record.ran), by_part(plan, asked), by_part(plan, suppliers)
    choices = []
    for name, part in plan.parts().items():
        present = Algorithm(part.devices[0].seed, part.devices[0].slice_ns)
        own = Record(tuple(ran.get(name, ())), record.left_ns)
        if judge(part, own).is_satisfied:
            choices.append(Choice(name, present, "all planned work was done", ()))
            continue
        tried: dict[Algorithm, Judgement] = {}
        for one in (present, *(Algorithm(seed, ns) for seed in seeds for ns in lengths_ns)):
            if one not in tried:
                trial = _planned_by(one, name, part, policy)
                would = carry_out(trial, policy, wanted.get(name, ()), there.get(name, ()))
                tried[one] = judge(trial, would)
        choices.append(_choice(name, tried))
    return tuple(choices)


def _planned_by(algorithm: Algorithm, name: str, part: Plan, policy: Policy) -> Plan:
    """What would have been planned by another algorithm."""
    suppliers = [Supplier(one.device, one.switch_ns) for one in part.devices]
    return make_plan(
        part.demands, suppliers, policy, window_ns=part.window_ns, chosen={name: algorithm}
    )


def _choice(name: str, tried: Mapping[Algorithm, Judgement]) -> Choice:
    """The best of those that were tried, the first of which is the present one."""
    best = min(tried, key=lambda one: _figures(tried[one]))
    candidates = tuple(
        Candidate(one, judgement, _reason(judgement, tried[best], is_best=one == best))
        for one, judgement in tried.items()
    )
    present = next(iter(tried))
    if best == present:
        reason = f"kept: none of {len(tried)} blocks less, or as little and more evenly"
    else:
        reason = (
            f"blocks {tried[best].blocking_rate:.2%} of the planned work with s² = "
            f"{tried[best].variance:.4g}, the best of {len(tried)}; before it were "
            f"{tried[present].blocking_rate:.2%} and {tried[present].variance:.4g}"
        )
    return Choice(name, best, reason, candidates)


def _figures(judgement: Judgement) -> tuple[int, float]:
    return sum(judgement.blocked_ns.values()), judgement.variance


def _reason(judgement: Judgement, best: Judgement, *, is_best: bool) -> str:
    blocked_ns, variance = _figures(judgement)
    least_ns, least_variance = _figures(best)
    if is_best:
        return "the lowest blocking rate, and of those the lowest variance"
    if blocked_ns > least_ns:
        return f"blocks {judgement.blocking_rate - best.blocking_rate:.2%} more of the planned work"
    if variance > least_variance:
        return f"blocks as little, but less evenly: s² is {variance - least_variance:.4g} higher"
    return "as good as the best, and tried after it"
