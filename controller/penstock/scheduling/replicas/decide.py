"""Replica count decision, as a pure function of time, samples and history.

The count grows when *any* metric is above `up`, and shrinks when *all* metrics are below `down`. As
in Kubernetes' HPA, it is the total of a metric divided by the threshold, rounded up. ADR 17
explains why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.model.metric import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.model.metric import Metric
    from penstock.policy.schema import Scale, Threshold

MAX_AGE_NS = 30 * 10**9  # an older value counts as unknown
# After shrinking, the load may be at most this part of `up`, so that noise does not cause growth.
HEADROOM = 0.9
GROWTH_FACTOR, GROWTH_STEP = (
    2,
    4,
)  # one step at most doubles the count or, if more, adds four
# After a change, values need this part of the stabilisation window to reflect the new count.
SETTLE_PARTS = 4
_ENOUGH = 10**9  # more replicas than any policy allows; keeps arithmetic on absurd values finite


@dataclass(frozen=True)
class Sample:
    """One measured value, in percent for utilisations and in requests per second for qps."""

    at_ns: int  # on the clock of `Observation.at_ns`
    value: float


@dataclass(frozen=True)
class ReplicaSample:
    """The values of one replica. A metric that is missing in `figures` is unknown."""

    ready: bool
    figures: Mapping[Metric, Sample] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """All measurements at one time.

    `totals` are demands measured outside the replicas, such as requests per second at a load
    balancer. They are divided by the number of ready replicas, and are known even with no replica.
    """

    at_ns: int  # monotonic
    replicas: Sequence[ReplicaSample]  # as many as the last decision wanted, ready or not
    totals: Mapping[Metric, Sample] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """State that earlier decisions pass on to later decisions, initially `History()`.

    The history has its own clock, which never runs backwards. An observation advances it by at most
    a part of the stabilisation window, so that a jump of the caller's clock cannot end a window
    that was not observed.
    """

    clock_ns: int = 0
    observed_ns: int | None = None  # the last observation's time, on the caller's clock
    recommended: tuple[tuple[int, int], ...] = ()  # (clock_ns, replicas), over the window
    settled_ns: int = 0  # no growth before this time
    ready: int = 0  # ready replicas at the last observation


@dataclass(frozen=True)
class Decision:
    """The wanted number of replicas, with the reason in words."""

    replicas: int
    reason: str
    values: Mapping[Metric, float] = field(default_factory=dict)  # means over ready replicas


@dataclass(frozen=True)
class _Load:
    """The load of all replicas by one metric."""

    metric: Metric
    threshold: Threshold
    mean: float | None  # over ready replicas with a value
    total_at_least: float  # replicas without a value count as 0
    total_at_most: float | None  # ... or count as at `up`; None if nothing is known
    mean_at_most: float | None

    def __str__(self) -> str:
        names = METRICS[self.metric]
        shown = "not known" if self.mean is None else f"{self.mean:.4g}{names.unit}"
        return f"{names.shown} {shown}"

    @property
    def is_high(self) -> bool:
        """Whether the known values are above `up`."""
        return self.mean is not None and self.mean > self.threshold.up

    @property
    def is_low(self) -> bool:
        """Whether the load is below `down`, whatever the unknown values are."""
        return self.mean_at_most is not None and self.mean_at_most < self.threshold.down


def decide(observation: Observation, scale: Scale, history: History) -> tuple[Decision, History]:
    """The number of replicas for an observation, and the history for the next call.

    Values that are missing, too old, negative or not finite are unknown. An unknown value counts as
    0 for growing, and as the upper threshold for shrinking.
    """
    current = len(observation.replicas)
    loads = _loads(observation, scale)
    history = _advance(history, observation, scale, current)
    wanted, reason = _recommend(current, observation, scale, loads)
    window = (*history.recommended, (history.clock_ns, wanted))
    if wanted < current <= scale.max:
        held = min(current, max(count for _, count in window))
        if held > wanted:
            reason = f"{reason}; held at {held}: {_held(window, held, scale)}"
        wanted = held
    elif wanted > current >= max(1, scale.min) and history.clock_ns < history.settled_ns:
        left_s = (history.settled_ns - history.clock_ns) / 1e9
        reason = f"{reason}; held at {current}: {left_s:.1f} s until the last change shows"
        wanted = current
    settled_ns = history.settled_ns
    if wanted != current:
        settled_ns = history.clock_ns + scale.stabilization // SETTLE_PARTS
    values = {load.metric: load.mean for load in loads if load.mean is not None}
    return (
        Decision(wanted, reason, values),
        replace(history, recommended=window, settled_ns=settled_ns),
    )


def floor_of(scale: Scale) -> int:
    """The minimum number of replicas; 0 only if demand is measured outside the replicas (qps)."""
    return scale.min if scale.metrics.qps is not None else max(1, scale.min)


def thresholds_of(scale: Scale) -> dict[Metric, Threshold]:
    """The metrics in the policy, with their thresholds."""
    named = {metric: getattr(scale.metrics, metric) for metric in METRICS}
    return {metric: threshold for metric, threshold in named.items() if threshold is not None}


def _recommend(
    current: int, observation: Observation, scale: Scale, loads: list[_Load]
) -> tuple[int, str]:
    """The count that the current values call for, within bounds, and the reason."""
    if not scale.min <= current <= scale.max:
        which = f"fewer than min ({scale.min})" if current < scale.min else f"max is {scale.max}"
        return min(max(current, scale.min), scale.max), which
    if current == 0:
        return _from_nothing(scale, loads)
    if any(load.is_high for load in loads):
        return _grown(current, observation, scale, loads)
    if all(load.is_low for load in loads):
        return _shrunk(current, observation, scale, loads)
    shown = ", ".join(map(str, loads))
    if all(load.is_low or load.mean_at_most is None for load in loads):
        return current, f"{shown}: {_of_the_unknown(current, scale, loads)}"
    return current, f"{shown}: between the thresholds"


def _of_the_unknown(current: int, scale: Scale, loads: list[_Load]) -> str:
    """The reason for no change if a value is missing, which may be why one replica is kept."""
    demand = next((load for load in loads if load.metric == "qps"), None)
    if current == 1 and floor_of(scale) == 0 and demand and demand.mean_at_most is None:
        return "one replica is kept until demand is known"
    return "unknown values change nothing"


def _shrunk(
    current: int, observation: Observation, scale: Scale, loads: list[_Load]
) -> tuple[int, str]:
    """The smallest count whose load stays below `up`, with headroom."""
    floor = floor_of(scale)
    needs = {
        load.metric: _count(load.total_at_most, load.threshold.up * HEADROOM) for load in loads
    }
    needed = max(needs.values())
    needed = 0 if floor == 0 and _no_demand(observation) else max(1, needed)
    wanted = max(floor, min(current, needed))
    shown = ", ".join(map(str, loads))
    if wanted < current:
        return wanted, f"{shown}: all below down"
    if current == max(1, floor):
        return current, f"{shown}: below down, and no fewer than {current} are kept"
    driver = max(loads, key=lambda load: needs[load.metric])
    projected = (driver.total_at_most or 0.0) / (current - 1)
    return current, (
        f"{shown}: below down, but {METRICS[driver.metric].shown} would be {projected:.4g} on "
        f"{current - 1}, too near {driver.threshold.up:g}"
    )


def _grown(
    current: int, observation: Observation, scale: Scale, loads: list[_Load]
) -> tuple[int, str]:
    """The count that the most demanding of the high metrics calls for, limited to one step."""
    high = [load for load in loads if load.is_high]
    needs = {load.metric: _count(load.total_at_least, load.threshold.up) for load in high}
    driver = max(high, key=lambda load: needs[load.metric])
    needed = needs[driver.metric]
    reason = f"{driver} is above {driver.threshold.up:g}"
    if needed <= current:
        waiting = sum(not replica.ready for replica in observation.replicas)
        which = f"{waiting} not ready yet" if waiting else "some without figures"
        return current, f"{reason}, but {current} suffice ({which})"
    limit = max(current * GROWTH_FACTOR, current + GROWTH_STEP)
    wanted = min(needed, limit, scale.max)
    if needed > scale.max and wanted == scale.max:
        wished = needed if needed < _ENOUGH else "many more"
        return wanted, f"{reason}: {wished} wanted, max is {scale.max}"
    if needed > limit:
        return wanted, f"{reason}: at most {limit} in one step"
    return wanted, reason


def _from_nothing(scale: Scale, loads: list[_Load]) -> tuple[int, str]:
    """The count when there is no replica, which follows only from demand measured outside."""
    demand = next((load for load in loads if load.metric == "qps"), None)
    if demand is None or demand.total_at_most is None:
        return min(1, scale.max), "demand is not known: one replica is kept"
    if demand.total_at_least <= 0:
        return 0, "no demand"
    needed = max(1, _count(demand.total_at_least, demand.threshold.up))
    wanted = min(needed, GROWTH_STEP, scale.max)
    return wanted, f"{demand.total_at_least:.4g} requests per second need {needed}"


def _held(window: Sequence[tuple[int, int]], held: int, scale: Scale) -> str:
    asked = max(at for at, count in window if count >= held)
    left_s = max(0.0, (asked + scale.stabilization - window[-1][0]) / 1e9)
    return f"needed within the last {scale.stabilization / 1e9:g} s ({left_s:.1f} s to go)"


def _no_demand(observation: Observation) -> bool:
    """Whether demand measured outside the replicas is known to be zero."""
    total = _known(observation.totals.get("qps"), observation.at_ns)
    return total == 0


def _loads(observation: Observation, scale: Scale) -> list[_Load]:
    ready = [replica for replica in observation.replicas if replica.ready]
    return [
        _load(metric, threshold, observation, ready)
        for metric, threshold in thresholds_of(scale).items()
    ]


def _load(
    metric: Metric, threshold: Threshold, observation: Observation, ready: list[ReplicaSample]
) -> _Load:
    total = _known(observation.totals.get(metric), observation.at_ns)
    if total is not None:
        mean = total / len(ready) if ready else None
        # For shrinking, count all wanted replicas, because those that are starting will take load.
        most = total / max(1, len(observation.replicas))
        return _Load(metric, threshold, mean, total, total, max(most, mean or 0.0))
    figures = [_known(replica.figures.get(metric), observation.at_ns) for replica in ready]
    known = [figure for figure in figures if figure is not None]
    if not known:
        return _Load(metric, threshold, None, 0.0, None, None)
    at_least = math.fsum(known) if max(known) < math.inf / 2 else math.inf
    at_most = at_least + (len(ready) - len(known)) * threshold.up
    # Replicas that are not ready are left out of the mean, so the total is extrapolated to all.
    mean_at_most = at_most / len(ready)
    return _Load(
        metric,
        threshold,
        at_least / len(known),
        at_least,
        mean_at_most * len(observation.replicas),
        mean_at_most,
    )


def _known(sample: Sample | None, now_ns: int) -> float | None:
    """The value if it is usable (recent, finite, not negative), else None."""
    if sample is None or abs(now_ns - sample.at_ns) > MAX_AGE_NS:
        return None
    value = sample.value
    # No real value is that large, so it must be a measurement error.
    return value if math.isfinite(value) and 0 <= value < 1e15 else None


def _count(total: float | None, each: float) -> int:
    """Replicas needed for `total` at up to `each` per replica; a rounding error adds no replica."""
    if total is None or each <= 0:
        return _ENOUGH
    ratio = total / each
    return _ENOUGH if ratio >= _ENOUGH else math.ceil(ratio - 1e-9)


def _advance(history: History, observation: Observation, scale: Scale, current: int) -> History:
    """Advances the history's clock, drops old entries, and notes newly ready replicas."""
    before = history.observed_ns
    elapsed = 0 if before is None else observation.at_ns - before
    clock_ns = history.clock_ns + max(0, min(elapsed, scale.stabilization // SETTLE_PARTS))
    # At the start nothing is known about the past, so assume that the current count was right.
    recommended = history.recommended or ((clock_ns, current),)
    since_ns = clock_ns - scale.stabilization
    kept = tuple(entry for entry in recommended if entry[0] > since_ns)
    ready = sum(replica.ready for replica in observation.replicas)
    settled_ns = history.settled_ns
    if before is not None and ready > history.ready:
        settled_ns = max(settled_ns, clock_ns + scale.stabilization // SETTLE_PARTS)
    return replace(
        history,
        clock_ns=clock_ns,
        observed_ns=observation.at_ns,
        recommended=_thinned(kept),
        settled_ns=settled_ns,
        ready=ready,
    )


def _thinned(window: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Keeps the entries that can still become the maximum, which exceed every later entry."""
    kept: list[tuple[int, int]] = []
    for entry in window:
        while kept and kept[-1][1] <= entry[1]:
            kept.pop()
        kept.append(entry)
    return tuple(kept)
