"""History of a pool: how many blocks were held, waited for and suspended in the last hour."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.pool.registry import Registry

PERIOD_NS = 10 * 10**9
MOST_SAMPLES = 360


@dataclass(frozen=True, slots=True)
class Sample:
    """Blocks at a moment."""

    time_ns: int
    held: int
    waiting: int
    suspended: int


class History:
    """Samples of the last hour, oldest first."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)

    def __iter__(self) -> Iterator[Sample]:
        return iter(list(self._samples))

    def sample(self, registry: Registry) -> None:
        """Takes a sample, if the last one is old enough."""
        now_ns = registry.clock.now_ns()
        if self._samples and now_ns - self._samples[-1].time_ns < PERIOD_NS:
            return
        self._samples.append(sample_of(registry, now_ns))


def sample_of(registry: Registry, now_ns: int) -> Sample:
    """A sample of the pool as it is."""
    space, waiting, suspended = registry.pool.space, 0, 0
    for name in registry.pool.queue:
        one = registry.pool.applications[name]
        if one.phase == "suspended":
            suspended += one.claim.blocks
        else:
            waiting += one.claim.blocks
    return Sample(now_ns, space.held, waiting, suspended)
