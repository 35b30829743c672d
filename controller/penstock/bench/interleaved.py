"""Overhead of the shim, measured by running the same program alternately with and without it.

The difference is taken within a round, so that a slow minute of the machine affects all arms. The
result is the median over rounds, with the quartiles.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Timing = Mapping[str, float]  # statistics of many calls: median_ns, mean_ns and others

Told = TypeVar("Told")


@dataclass(frozen=True)
class Added:
    """Additional cost of one arm's calls over calls without the shim, in nanoseconds."""

    native_median_ns: float
    added_median_ns: float  # median over rounds of the difference of medians
    added_low_ns: float  # lower quartile over rounds
    added_high_ns: float  # upper quartile over rounds
    added_mean_ns: float  # median over rounds of the difference of means

    @classmethod
    def of(cls, native: Sequence[Timing], shimmed: Sequence[Timing]) -> Added:
        """The added cost, computed from the rounds of two arms in the same order."""
        pairs = list(zip(native, shimmed, strict=True))
        medians = [s["median_ns"] - n["median_ns"] for n, s in pairs]
        means = [s["mean_ns"] - n["mean_ns"] for n, s in pairs]
        low, middle, high = quartiles(medians)
        return cls(
            native_median_ns=round(statistics.median(n["median_ns"] for n in native), 1),
            added_median_ns=round(middle, 1),
            added_low_ns=round(low, 1),
            added_high_ns=round(high, 1),
            added_mean_ns=round(statistics.median(means), 1),
        )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; all three are equal for a single value."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def load_average() -> float:
    """The machine's load average of the last minute, which each result includes."""
    return round(os.getloadavg()[0], 1)


def in_turn(
    arms: Mapping[str, Callable[[], Told]], rounds: int
) -> tuple[dict[str, list[Told]], float]:
    """Runs each arm once per round; returns their results and the load average at the end."""
    seen: dict[str, list[Told]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm, measure in arms.items():
            seen[arm].append(measure())
    return seen, load_average()
