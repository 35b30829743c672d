"""All lists, seeds and policies replayed, and their summary beside the published figures."""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.bench.machine import processor_name
from penstock.bench.openb.bound import most_allocated_milli
from penstock.bench.openb.migration import Migration
from penstock.bench.openb.policies import POLICIES
from penstock.bench.openb.replay import prepare, run
from penstock.bench.openb.trace import LISTS, read_nodes, read_pods

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.bench.openb.replay import Replay
    from penstock.bench.openb.trace import Node, Shape

MIGRATING = "+migration"
NAMES = (*POLICIES, *(name + MIGRATING for name in POLICIES))
DEFAULT_POLICIES = (*POLICIES, "usable" + MIGRATING)
DEFAULT_SEEDS = tuple(range(42, 52))  # the published ones

PUBLISHED_IN = (
    "Weng et al., Beware of Fragmentation, USENIX ATC 2023, by the authors' simulator "
    "(hkust-adsl/kubernetes-scheduler-simulator)"
)
# GPU allocated in percent of capacity once requests for 130 % of it have arrived.
PUBLISHED = {
    "random": (87.47, 91.24, 86.00, 83.65, 87.43, 88.69),
    "best-fit": (93.08, 93.79, 91.69, 89.36, 93.30, 93.93),
    "fgd": (95.39, 95.21, 94.15, 91.40, 94.95, 95.65),
}


@dataclass(frozen=True)
class RunResult:
    """One policy on the arrivals of one list and seed. Percent is of the cluster's GPU capacity."""

    list: str
    policy: str
    seed: int
    allocated_percent: float
    bound_percent: float  # `bound`, given what this policy placed
    arrivals: int
    dropped: int
    migrations: int


@dataclass(frozen=True)
class Summary:
    """One policy on one list: allocated GPU in percent over the seeds."""

    list: str
    policy: str
    median: float
    least: float
    most: float
    published: float | None  # mean over ten seeds
    bound: float  # median
    migrations: str  # in a run


def report(runs: Sequence[RunResult]) -> dict[str, object]:
    """The whole result as plain values: machine, source of the published figures, rows, runs."""
    return {
        "machine": {
            "processor": processor_name(),
            "cores": len(os.sched_getaffinity(0)),
            "load": [round(load, 1) for load in os.getloadavg()],  # over 1, 5 and 15 minutes
            "version": __version__,
            "date": datetime.now(timezone.utc).date().isoformat(),
        },
        "published": PUBLISHED_IN,
        "summary": [asdict(row) for row in summarize(runs)],
        "runs": [asdict(row) for row in runs],
    }


def run_all(
    folder: Path,
    *,
    lists: Sequence[str] = LISTS,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    policies: Sequence[str] = DEFAULT_POLICIES,
    progress: Callable[[int, int], None] | None = None,
) -> list[RunResult]:
    """Replays every list with every policy and seed.

    Raises:
        PenstockError: a file of the trace is missing or damaged.
    """
    nodes = read_nodes(folder)
    pods = {name: read_pods(folder, name) for name in lists}
    results: list[RunResult] = []
    for name in lists:
        for policy in policies:
            for seed in seeds:
                results.append(run_one(nodes, pods[name], name, policy, seed))
                if progress:
                    progress(len(results), len(lists) * len(policies) * len(seeds))
    return results


def run_one(
    nodes: Sequence[Node], pods: Sequence[Shape], name: str, policy: str, seed: int
) -> RunResult:
    """Replays one list with one policy and seed."""
    replay, arriving = prepare(nodes, pods, POLICIES[policy.removesuffix(MIGRATING)], seed)
    migration = Migration(replay) if policy.endswith(MIGRATING) else None
    advance = migration.run if migration else partial(run, replay)
    full = _capacity_reached(arriving, replay.cluster.capacity_milli)
    advance(arriving[:full])
    bound = _bound(replay, arriving[full:])
    advance(arriving[full:])
    capacity = replay.cluster.capacity_milli
    return RunResult(
        list=name,
        policy=policy,
        seed=seed,
        allocated_percent=100 * replay.allocated_milli / capacity,
        bound_percent=100 * bound / capacity,
        arrivals=len(arriving),
        dropped=len(replay.dropped),
        migrations=len(migration.moved_at) if migration else 0,
    )


def _capacity_reached(arriving: Sequence[Shape], capacity_milli: int) -> int:
    """How many arrivals together request the whole capacity."""
    arrived = 0
    for number, shape in enumerate(arriving):
        arrived += shape.total_milli
        if arrived >= capacity_milli:
            return number + 1
    return len(arriving)


def _bound(replay: Replay, later: Sequence[Shape]) -> int:
    placed = (one.shape for one in replay.placed)
    return most_allocated_milli(replay.cluster.capacity_milli, placed, later)


def summarize(results: Sequence[RunResult]) -> list[Summary]:
    """One row for each list and policy."""
    groups: dict[tuple[str, str], list[RunResult]] = {}
    for one in results:
        groups.setdefault((one.list, one.policy), []).append(one)
    return [_summary(name, policy, runs) for (name, policy), runs in groups.items()]


def _summary(name: str, policy: str, runs: Sequence[RunResult]) -> Summary:
    allocated = [one.allocated_percent for one in runs]
    moves = sorted(one.migrations for one in runs)
    published = PUBLISHED.get(policy)
    return Summary(
        list=name,
        policy=policy,
        median=round(statistics.median(allocated), 2),
        least=round(min(allocated), 2),
        most=round(max(allocated), 2),
        published=published[LISTS.index(name)] if published else None,
        bound=round(statistics.median(one.bound_percent for one in runs), 2),
        migrations=f"{moves[0]} to {moves[-1]}" if moves[-1] else "0",
    )
