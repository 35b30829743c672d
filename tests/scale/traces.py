"""A service under a load that changes: what `decide` would do, without processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from penstock.policy.schema import Scale
from penstock.scheduling.replicas.decide import History, Observation, ReplicaSample, Sample, decide

SECOND_NS = 10**9


def scale_of(minimum=1, maximum=8, stabilization="20s", **metrics) -> Scale:
    """A policy's `scale`; a metric is given as (down, up)."""
    return Scale.model_validate(
        {
            "min": minimum,
            "max": maximum,
            "stabilization": stabilization,
            "metrics": {name: {"down": down, "up": up} for name, (down, up) in metrics.items()},
        }
    )


def replica(at_ns=0, ready=True, **figures) -> ReplicaSample:
    return ReplicaSample(ready, {name: Sample(at_ns, value) for name, value in figures.items()})


@dataclass
class Service:
    """Replicas that share a load evenly; a new one is ready after `start_s`."""

    scale: Scale
    count: int = 1
    start_s: int = 2
    saturates_at: float | None = 100
    history: History = field(default_factory=History)
    at_s: int = 0
    born: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.born = [-self.start_s] * self.count

    def second(self, load: float, metric: str = "cpu") -> None:
        """One second under a total load in percent of one replica."""
        at_ns = self.at_s * SECOND_NS
        ready = [self.at_s - born >= self.start_s for born in self.born]
        each = load / max(1, sum(ready))
        if self.saturates_at is not None:
            each = min(each, self.saturates_at)
        samples = [
            replica(at_ns, **{metric: each}) if is_ready else replica(ready=False)
            for is_ready in ready
        ]
        decision, self.history = decide(Observation(at_ns, samples), self.scale, self.history)
        if decision.replicas != self.count:
            self.reasons.append(
                f"{self.at_s}: {self.count} → {decision.replicas}: {decision.reason}"
            )
        self.born = self.born[: decision.replicas]
        self.born += [self.at_s] * (decision.replicas - len(self.born))
        self.count = decision.replicas
        self.counts.append(self.count)
        self.at_s += 1

    def run(self, loads) -> list[int]:
        """One second of each load; the counts after each."""
        for load in loads:
            self.second(load)
        return self.counts

    @property
    def changes(self) -> int:
        """How often the count changed."""
        return sum(a != b for a, b in pairwise(self.counts))

    @property
    def turns(self) -> int:
        """How often it changed direction: flapping, in a number."""
        steps = [b - a for a, b in pairwise(self.counts) if a != b]
        return sum((a > 0) != (b > 0) for a, b in pairwise(steps))
