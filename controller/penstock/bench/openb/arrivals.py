"""The arrivals of one run as the published protocol makes them, and the typical Pods of a list."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.openb.trace import Shape

ARRIVED_RATIO = 1.3  # GPU requests in total, of the cluster's capacity
TYPICAL_RATIO = 0.95  # typical shapes make up so much of a list's Pods

# Independent streams of one seed: a policy's choices do not change what arrives.
ORDER_STREAM, ARRIVAL_STREAM, POLICY_STREAM = range(3)


def stream(seed: int, which: int) -> np.random.Generator:
    """The random numbers of one run for one purpose."""
    return np.random.default_rng([seed, which])


def arrivals(pods: Sequence[Shape], capacity_milli: int, seed: int) -> list[Shape]:
    """All Pods of the list, shuffled, then Pods drawn from it until `ARRIVED_RATIO` is reached."""
    chance = stream(seed, ARRIVAL_STREAM)
    result = [pods[at] for at in chance.permutation(len(pods))]
    arrived = sum(pod.total_milli for pod in result)
    if not arrived:
        return result
    while arrived < ARRIVED_RATIO * capacity_milli:
        result.append(pods[int(chance.integers(len(pods)))])
        arrived += result[-1].total_milli
    return result


@dataclass(frozen=True)
class TypicalPod:
    """A popular shape, without its memory, and its part of all typical Pods."""

    shape: Shape
    frequency: float


def typical_pods(pods: Sequence[Shape]) -> list[TypicalPod]:
    """The most popular shapes that together make up `TYPICAL_RATIO` of the Pods."""
    counts = Counter(replace(pod, memory_mib=0) for pod in pods)
    ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    kept: list[tuple[Shape, int]] = []
    covered = 0
    for shape, count in ranked:
        if covered >= TYPICAL_RATIO * len(pods):
            break
        kept.append((shape, count))
        covered += count
    return [TypicalPod(shape, count / covered) for shape, count in kept]
