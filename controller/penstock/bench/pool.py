"""Benchmark of the pool's decisions: time, memory and contiguity under random operations.

Applications of 1 to 100 blocks, small ones more often, come and end at random. The pool decides
only: nothing is stored and no node is asked.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.interleaved import load_average
from penstock.scheduling.blocks.card import Card
from penstock.scheduling.blocks.claim import Claim
from penstock.scheduling.blocks.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

CARDS, CARD_BLOCKS, CARD_BYTES = 4, 25, 80 << 30  # of each node
SIZES = (1, 2, 3, 4, 5, 8, 10, 12, 16, 20, 25, 40, 64, 100)
WEIGHTS = (20, 15, 12, 12, 10, 8, 6, 6, 5, 3, 3, 2, 1, 0.5)
PRIORITIES = 3
SEED = 42
MOVES_PER_OPERATION = 0.01
SAMPLE_EVERY = 1000


@dataclass(frozen=True)
class PoolRow:
    """One pool under one load."""

    nodes: int
    blocks: int
    moves: str  # "none", or at most 10 in 1,000 operations
    operations: int
    applications: int
    free_runs: int
    used_percent: float
    acquire_median_us: float
    acquire_p99_us: float
    release_p99_us: float
    one_run_percent: float  # of applications with several blocks, mean over the second half
    moves_per_1000: float
    plan_ms: float  # the plan of the moves that gain more than they cost
    memory_mib: float  # more than before
    load: float  # the machine's load average


class _Trial:
    """A pool, and who is in it."""

    def __init__(self, nodes: int, *, moves: bool) -> None:
        self.random = random.Random(SEED)  # noqa: S311 - a workload
        self.pool = Pool()
        self.names: list[str] = []
        self.allowance = 0.0 if moves else float("-inf")
        self.moved = self.count = self.now_ns = 0
        self.acquire_s: list[float] = []
        self.release_s: list[float] = []
        for node in range(nodes):
            cards = [
                Card(f"{node}-{at}", "gpu", CARD_BLOCKS, CARD_BYTES, "card", frees_memory=True)
                for at in range(CARDS)
            ]
            self.pool.join(f"node{node}", cards, 0)

    @property
    def used(self) -> float:
        """The part of all blocks that is allocated."""
        return 1 - self.pool.space.free[""] / self.pool.space.size[""]

    def acquire(self) -> None:
        """One application more; what it makes suspend does so at once."""
        self.count += 1
        name = f"app{self.count}"
        claim = Claim(self.random.choices(SIZES, WEIGHTS)[0], self.random.randrange(PRIORITIES))
        begun = time.perf_counter()
        decision = self.pool.acquire(name, claim, self.now_ns)
        self.acquire_s.append(time.perf_counter() - begun)
        for action in decision.actions:
            if action.what == "suspend":
                self.pool.suspended(action.name, self.now_ns)
        if decision.outcome != "refused":
            self.names.append(name)

    def release(self) -> None:
        """One application ends."""
        at = self.random.randrange(len(self.names))
        self.names[at], self.names[-1] = self.names[-1], self.names[at]
        name = self.names.pop()
        begun = time.perf_counter()
        self.pool.release(name, self.now_ns)
        self.release_s.append(time.perf_counter() - begun)

    def step(self, target: float) -> None:
        """One operation, so that the pool stays about as full as `target`; and moves."""
        self.now_ns += 10**6
        if self.used < target and self.random.random() < 0.7:
            self.acquire()
        elif self.names:
            self.release()
        self.allowance = min(self.allowance + MOVES_PER_OPERATION, 10)
        if self.allowance < 1:
            return
        for move in self.pool.compact().moves:
            if self.pool.begin(move, self.now_ns) and move.moved_bytes:
                self.pool.moved(move.name, self.now_ns)
                self.moved += 1
                self.allowance -= 1

    def one_run(self) -> float:
        """Of running applications with several blocks, the part whose blocks are one run."""
        several = [
            len(one.runs) == 1
            for one in self.pool.applications.values()
            if one.phase == "running" and one.claim.blocks > 1
        ]
        return sum(several) / len(several) if several else 1.0


def run(
    *,
    nodes: int,
    operations: int,
    used: float,
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> list[PoolRow]:
    """Two pools of `nodes` nodes with 100 blocks each, without moves and with few.

    `used`: how full they are kept, 0 to 1.
    """
    rows = []
    for done, moves in enumerate((False, True)):
        progress(done, 2)
        rows.append(_row(nodes, operations, used, moves=moves))
    progress(2, 2)
    return rows


def _row(nodes: int, operations: int, used: float, *, moves: bool) -> PoolRow:
    before_kib = _resident_kib()
    trial = _Trial(nodes, moves=moves)
    while trial.used < used:
        trial.acquire()
    trial.acquire_s.clear()
    runs = []
    for done in range(operations):
        trial.step(used)
        if done >= operations // 2 and done % SAMPLE_EVERY == 0:
            runs.append(trial.one_run())
    memory_mib = (_resident_kib() - before_kib) / 1024
    begun = time.perf_counter()
    trial.pool.compact()
    plan_s = time.perf_counter() - begun
    space = trial.pool.space
    return PoolRow(
        nodes=nodes,
        blocks=space.size[""],
        moves="10 in 1,000" if moves else "none",
        operations=operations,
        applications=len(trial.names),
        free_runs=sum(len(node.firsts) for node in space.nodes if node),
        used_percent=round(100 * trial.used, 1),
        acquire_median_us=round(1e6 * statistics.median(trial.acquire_s), 1),
        acquire_p99_us=round(1e6 * _p99(trial.acquire_s), 1),
        release_p99_us=round(1e6 * _p99(trial.release_s), 1),
        one_run_percent=round(100 * statistics.fmean(runs or [trial.one_run()]), 2),
        moves_per_1000=round(1000 * trial.moved / operations, 2),
        plan_ms=round(1e3 * plan_s, 1),
        memory_mib=round(memory_mib, 1),
        load=load_average(),
    )


def _p99(figures: list[float]) -> float:
    return sorted(figures)[int(len(figures) * 0.99)] if figures else 0.0


def _resident_kib() -> int:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
