"""Decisions of the compute pool at full size, on free blocks in very many pieces; as JSON.

Usage: python bench/pool_scale.py [RUNS] > bench/results/NAME.json

A pool of 10,000 nodes with 100 blocks each is filled to 95 % by applications of one and two
blocks. A million random operations follow: 45 % of them keep it that full; the rest are releases,
but for one claim in twenty, so that the free blocks lie in more than 100,000 runs. Then 20,000
claims and releases of the usual sizes (`penstock bench pool`) are timed there. Nothing is stored
and no node is asked. `wall`: as a clock shows it, with all that other programs take of the
machine meanwhile. `processor`: this thread's own time.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from penstock.bench.interleaved import load_average
from penstock.bench.pool import SIZES, WEIGHTS, _Trial
from penstock.scheduling.blocks.claim import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
NODES, OPERATIONS, FULL = 10_000, 1_000_000, 0.95
STEADY, CLAIMS_LATER = 0.45, 0.05
SMALL = ((1, 2), (0.6, 0.4))
TIMED = 20_000
PRIORITIES = 3


class _Times:
    """Wall and processor time of many calls."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.processor_s: list[float] = []

    def figures(self) -> dict[str, object]:
        """Median, 99th percentile and maximum, in microseconds."""
        found: dict[str, object] = {"calls": len(self.wall_s)}
        for name, times in (("wall", self.wall_s), ("processor", self.processor_s)):
            if not times:
                continue
            ordered = sorted(times)
            found[name] = {
                "median_us": round(1e6 * ordered[len(ordered) // 2], 1),
                "p99_us": round(1e6 * ordered[int(0.99 * len(ordered))], 1),
                "max_us": round(1e6 * ordered[-1], 1),
            }
        return found

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Calls the function, and notes how long it took."""
        wall, processor = time.perf_counter(), time.thread_time()
        result = function(*args)
        self.processor_s.append(time.thread_time() - processor)
        self.wall_s.append(time.perf_counter() - wall)
        return result


class _Pool(_Trial):
    """A pool under claims and releases that are timed."""

    def __init__(self, seed: int) -> None:
        super().__init__(NODES, moves=False)
        self.random = random.Random(seed)  # noqa: S311 - a workload
        self.acquires, self.releases = _Times(), _Times()

    def claim(self, sizes: Sequence[int], weights: Sequence[float]) -> None:
        """One claim; what it makes suspend does so at once."""
        self.count += 1
        self.now_ns += 10**6
        name = f"app{self.count}"
        claim = Claim(self.random.choices(sizes, weights)[0], self.random.randrange(PRIORITIES))
        decision = self.acquires.call(self.pool.acquire, name, claim, self.now_ns)
        for action in decision.actions:
            if action.what == "suspend":
                self.pool.suspended(action.name, self.now_ns)
        if decision.outcome != "refused":
            self.names.append(name)

    def end(self) -> None:
        """One application ends."""
        self.now_ns += 10**6
        at = self.random.randrange(len(self.names))
        self.names[at], self.names[-1] = self.names[-1], self.names[at]
        self.releases.call(self.pool.release, self.names.pop(), self.now_ns)

    def taken(self) -> dict[str, object]:
        """The figures of the calls since the last look. What has changed is forgotten."""
        found = {"acquire": self.acquires.figures(), "release": self.releases.figures()}
        self.acquires, self.releases = _Times(), _Times()
        self.pool.changed.clear()
        return found

    def state(self) -> dict[str, object]:
        """What is in the pool, and the memory of this process."""
        space = self.pool.space
        return {
            "applications": len(self.pool.applications),
            "free_runs": sum(len(node.firsts) for node in space.nodes if node),
            "used_percent": round(100 * self.used, 1),
            "resident_mb": _resident_mb(),
            "load": load_average(),
        }


def _resident_mb() -> float:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return round(int(file.read().split()[1]) * 4096 / 1e6, 1)


def _plan(pool: _Pool, *, every: bool) -> dict[str, object]:
    wall, processor = time.perf_counter(), time.thread_time()
    plan = pool.pool.compact(every=every)
    return {
        "processor_s": round(time.thread_time() - processor, 3),
        "wall_s": round(time.perf_counter() - wall, 3),
        "moves": len(plan.moves),
        "is_partial": plan.is_partial,
    }


def measure(seed: int) -> dict[str, object]:
    """One pool, with the operations of one seed."""
    empty_mb = _resident_mb()
    pool = _Pool(seed)
    while pool.used < FULL:
        pool.claim(*SMALL)
    found: dict[str, object] = {"seed": seed, "resident_mb_before": empty_mb}
    found["filled"] = {**pool.taken(), **pool.state()}
    print(json.dumps(found), file=sys.stderr, flush=True)
    for done in range(OPERATIONS):
        share = 0.5 if done < STEADY * OPERATIONS else CLAIMS_LATER
        if pool.random.random() < share and pool.used < FULL + 0.01:
            pool.claim(*SMALL)
        else:
            pool.end()
    found["million_operations"] = {**pool.taken(), **pool.state()}
    print(json.dumps(found), file=sys.stderr, flush=True)
    for done in range(TIMED):
        if done % 2:
            pool.end()
        else:
            pool.claim(SIZES, WEIGHTS)
    found["in_pieces"] = {**pool.taken(), **pool.state()}
    found["plan"], found["plan_full"] = _plan(pool, every=False), _plan(pool, every=True)
    return found


if __name__ == "__main__":
    RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(json.dumps([measure(42 + number) for number in range(RUNS)], indent=1))
