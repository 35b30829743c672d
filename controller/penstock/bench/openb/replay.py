"""The replay of one run: each arriving Pod goes to the best rated node that fits, or is dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.bench.openb.arrivals import (
    ORDER_STREAM,
    POLICY_STREAM,
    arrivals,
    stream,
    typical_pods,
)
from penstock.bench.openb.cluster import Cluster
from penstock.bench.openb.policies.policy import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from penstock.bench.openb.policies.policy import Policy
    from penstock.bench.openb.trace import Node, Shape

NOT_FITTING = -np.inf


@dataclass
class Placed:
    """One Pod in the cluster."""

    shape: Shape
    node: int
    gpus: tuple[int, ...]


@dataclass
class Ratings:
    """The ratings of all nodes for one shape, as of the change number `changes`."""

    scores: NDArray[np.float64]
    gpus: NDArray[np.int64]
    changes: int = 0


@dataclass
class Replay:
    """Places Pods on a cluster by a policy and keeps what it placed and dropped.

    Ratings are kept for each shape, and computed again only for nodes that changed since.
    """

    cluster: Cluster
    policy: Policy
    chance: np.random.Generator
    placed: list[Placed] = field(default_factory=list)
    dropped: list[Shape] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)  # nodes, in the order of their changes
    _ratings: dict[Shape, Ratings] = field(default_factory=dict)

    @property
    def allocated_milli(self) -> int:
        """The GPU of all placed Pods."""
        return sum(one.shape.total_milli for one in self.placed)

    def arrive(self, shape: Shape) -> bool:
        """Places the Pod if a node fits it; returns whether one did."""
        scores = self.rate(shape).scores
        node = scores.argmax()
        if scores[node] == NOT_FITTING:
            return False
        if self.policy.by_chance:
            node = self.chance.choice(np.flatnonzero(scores == scores[node]))
        self.place(shape, int(node))
        return True

    def place(self, shape: Shape, node: int) -> None:
        """Places the Pod on a node that fits it."""
        gpus = self.cluster.take(node, shape, int(self.rate(shape).gpus[node]))
        self.placed.append(Placed(shape, node, gpus))
        self.changed.append(node)

    def move(self, at: int, node: int) -> None:
        """Moves the Pod at this position of `placed` to another node, which fits it."""
        one = self.placed[at]
        gpu = int(self.rate(one.shape).gpus[node])
        self.cluster.give_back(one.node, one.shape, one.gpus)
        self.changed.append(one.node)
        one.gpus = self.cluster.take(node, one.shape, gpu)
        one.node = node
        self.changed.append(node)

    def rate(self, shape: Shape) -> Ratings:
        """The current ratings of all nodes for the shape."""
        known = self._ratings.get(shape)
        if known is None:
            count = len(self.cluster)
            known = Ratings(np.full(count, NOT_FITTING), np.zeros(count, dtype=np.int64))
            self._ratings[shape] = known
            stale = np.arange(count)
        else:
            stale = np.unique(np.array(self.changed[known.changes :], dtype=np.int64))
        known.changes = len(self.changed)
        if len(stale):
            fitting = self.cluster.fits(stale, shape)
            known.scores[stale[~fitting]] = NOT_FITTING
            fresh = stale[fitting]
            if len(fresh):
                known.scores[fresh], known.gpus[fresh] = self.policy.rate(fresh, shape)
        return known


def prepare(
    nodes: Sequence[Node], pods: Sequence[Shape], make: Callable[[Setting], Policy], seed: int
) -> tuple[Replay, list[Shape]]:
    """A replay on an empty cluster, its nodes in the seed's order, and the seed's arrivals."""
    order = stream(seed, ORDER_STREAM).permutation(len(nodes))
    cluster = Cluster([nodes[at] for at in order])
    chance = stream(seed, POLICY_STREAM)
    policy = make(Setting(cluster, typical_pods(pods), chance))
    return Replay(cluster, policy, chance), arrivals(pods, cluster.capacity_milli, seed)


def run(replay: Replay, arriving: Sequence[Shape]) -> None:
    """Lets more Pods arrive; those that do not fit are dropped."""
    for shape in arriving:
        if not replay.arrive(shape):
            replay.dropped.append(shape)
