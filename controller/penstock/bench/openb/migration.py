"""Migration: when a Pod does not fit, one placed Pod moves to another node so that it does.

Pods are never evicted. At most `MOST_MOVES` moves happen in any `WITHIN_ARRIVALS` consecutive
arrivals. Two moves for one Pod were tried, and allocated nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.bench.openb.replay import NOT_FITTING
from penstock.bench.openb.trace import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.bench.openb.replay import Replay
    from penstock.bench.openb.trace import Shape

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

MOST_MOVES = 10
WITHIN_ARRIVALS = 1000


@dataclass(frozen=True)
class Move:
    """One move: the Pod at this position of `Replay.placed` goes to `node`."""

    position: int
    node: int


@dataclass
class Migration:
    """Makes room for Pods that do not fit, within the limit on moves."""

    replay: Replay
    moved_at: list[int] = field(default_factory=list)  # the number of the arrival at each move
    _arrived: int = 0
    _pods: PlacedPods | None = None
    _hopeless: set[Shape] = field(default_factory=set)  # until something changes

    def run(self, arriving: Sequence[Shape]) -> None:
        """Lets more Pods arrive; those for which no room can be made are dropped."""
        for shape in arriving:
            self._arrived += 1
            if not self.replay.arrive(shape) and not self._make_room(shape):
                self.replay.dropped.append(shape)

    def _make_room(self, shape: Shape) -> bool:
        recent = sum(at > self._arrived - WITHIN_ARRIVALS for at in self.moved_at)
        if recent >= MOST_MOVES:
            return False
        if self._pods is None:
            self._pods = PlacedPods(self.replay)
        if self._pods.refresh():
            self._hopeless.clear()
        if shape in self._hopeless:
            return False
        move = self._pods.plan(shape)
        if move is None:
            self._hopeless.add(shape)
            return False
        self.replay.move(move.position, move.node)
        self.moved_at.append(self._arrived)
        if not self.replay.arrive(shape):
            raise AssertionError(f"{move} made no room for {shape}")
        return True


class PlacedPods:
    """All placed Pods as arrays, and which nodes fit each of their shapes."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._cluster = replay.cluster
        self._changes = 0
        # By position in `Replay.placed`: kind, node, first GPU. Then the Pods that fit elsewhere.
        self._kinds: list[int] = []
        self._kind = self._node = self._gpu = np.zeros(0, dtype=np.int64)
        self._movable = np.zeros(0, dtype=np.int64)
        # By kind of Pod, which is the number of its shape: the shape, its request, fitting nodes.
        self._shapes: dict[Shape, int] = {}
        self._requests = np.zeros((0, 4), dtype=np.int64)
        self._accepted = np.zeros((0, len(self._cluster)), dtype=bool)
        self._fits = np.zeros((0, len(self._cluster)), dtype=bool)

    def refresh(self) -> bool:
        """Brings everything up to date; returns whether anything had changed."""
        changed = np.unique(np.array(self._replay.changed[self._changes :], dtype=np.int64))
        self._changes = len(self._replay.changed)
        if not len(changed):
            return False
        placed = self._replay.placed
        for node in changed:
            self._fits[:, node] = self._fitting_kinds(int(node))
        for one in placed[len(self._kinds) :]:
            if one.shape not in self._shapes:
                self._add(one.shape)
            self._kinds.append(self._shapes[one.shape])
        self._kind = np.array(self._kinds, dtype=np.int64)
        self._node = np.array([one.node for one in placed], dtype=np.int64)
        self._gpu = np.array([one.gpus[0] if one.gpus else 0 for one in placed], dtype=np.int64)
        elsewhere = self._fits.sum(axis=1)[self._kind] > self._fits[self._kind, self._node]
        self._movable = np.flatnonzero(elsewhere)
        return True

    def _add(self, shape: Shape) -> None:
        self._shapes[shape] = len(self._shapes)
        request = (shape.cpu_milli, shape.memory_mib, shape.gpus, shape.gpu_milli)
        self._requests = np.vstack([self._requests, request])
        everywhere = np.arange(len(self._cluster))
        self._accepted = np.vstack([self._accepted, self._cluster.accepted(shape)])
        self._fits = np.vstack([self._fits, self._cluster.fits(everywhere, shape)])

    def _fitting_kinds(self, node: int) -> Bools:
        """Which kinds of Pod the node fits: `Cluster.fits` for one node and all kinds."""
        cpu, memory, gpus, milli = self._requests.T
        enough = (self._cluster.gpu[node] >= milli[:, None]).sum(axis=1) >= gpus
        fitting: Bools = (cpu <= self._cluster.cpu[node]) & (memory <= self._cluster.memory[node])
        fitting &= enough & self._accepted[:, node]
        return fitting

    def plan(self, shape: Shape) -> Move | None:
        """The move that makes room for the Pod, to the best rated node; None: there is none."""
        makes_room = self._movable[self._makes_room(self._movable, shape)]
        best: Move | None = None
        best_score = NOT_FITTING
        shapes = list(self._shapes)
        for kind in np.unique(self._kind[makes_room]):
            of_kind = makes_room[self._kind[makes_room] == kind]
            scores = self._replay.rate(shapes[kind]).scores
            first, second = np.argsort(-scores, kind="stable")[:2]
            targets = np.where(self._node[of_kind] == first, second, first)
            at = int(scores[targets].argmax())
            if scores[targets[at]] > best_score:
                best, best_score = Move(int(of_kind[at]), int(targets[at])), scores[targets[at]]
        return best

    def _makes_room(self, positions: Ints, shape: Shape) -> Bools:
        """Whether the node of each of these Pods fits `shape` once the Pod is gone."""
        cluster, node = self._cluster, self._node[positions]
        cpu, memory, gpus, milli = self._requests[self._kind[positions]].T
        fitting: Bools = cluster.cpu[node] + cpu >= shape.cpu_milli
        fitting &= cluster.memory[node] + memory >= shape.memory_mib
        if not shape.gpus:
            return fitting
        enough = (cluster.gpu[node] >= shape.gpu_milli).sum(axis=1)
        own = cluster.gpu[node, self._gpu[positions]]  # free beside a part
        gained = np.where(
            milli < WHOLE_MILLI,
            (own < shape.gpu_milli) & (own + milli >= shape.gpu_milli),
            gpus,
        )
        fitting &= (enough + gained >= shape.gpus) & cluster.accepted(shape)[node]
        return fitting
