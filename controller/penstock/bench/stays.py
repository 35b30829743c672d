"""Benchmark of lasting costs: how much each launch is slowed down by the work that came before it.

A launch after a million grids, after ten thousand unloaded modules, or beside hundreds of shared
allocations is compared with the same launch earlier in the same process.

Because the driver may get slower without the shim as well, the result is the growth under the shim
minus the growth without the shim.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.bench.figure import Figure
from penstock.bench.interleaved import in_turn, quartiles
from penstock.bench.stage import Stage
from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from penstock.bench.stage import StageTenant

COUNTS = {"grids": 1_000_000, "modules": 10_000, "shares": 760}
NAMES = {"grids": "new grids", "modules": "unloaded modules", "shares": "shared allocations"}
CALLS = 10_000
KINDS = 64  # different kernels launched before and after
CORES = 99.0
MOST_NS = 30  # limit on the additional cost of a launch


@dataclass(frozen=True)
class StaysRow:
    """One possible lasting cost, in nanoseconds per launch, as medians over rounds."""

    after: str
    wanted: int
    reached: int  # fewest in a round under the shim, which is bounded in time
    before_ns: float  # under the shim
    after_ns: float
    native_growth_ns: float  # after minus before, without the shim
    growth_ns: float  # after minus before, under the shim
    stays_ns: float  # the difference of both growths, within a round
    stays_low_ns: float
    stays_high_ns: float
    native_step_ns: float  # per new grid, module or share at the end, without the shim
    step_ns: float  # the same value under the shim
    rounds: int
    load: float


def run(
    *,
    simulate: str = "h200",
    rounds: int = 3,
    calls: int = CALLS,
    counts: Mapping[str, int] | None = None,
    seconds: float = 15,
    progress: Callable[[int, int], None] | None = None,
) -> list[StaysRow]:
    """Measure each possible lasting cost.

    Args:
        simulate: profile of the simulated device.
        rounds: number of runs with and without the shim, alternating.
        calls: timed launches before and after.
        counts: numbers of new grids, unloaded modules and shares.
        seconds: time limit for a process to make them; it reports how many it made.
        progress: called with (done, all).

    Raises:
        StageError: a program failed.
    """
    wanted = COUNTS if counts is None else counts
    rows = []
    for after, count in wanted.items():
        words = ["--after", after, "--count", str(count), "--seconds", str(seconds)]
        words += ["--calls", str(calls), "--kinds", str(KINDS)]
        with Stage(simulate) as stage:
            tenant = stage.tenant("stays", CORES)
            arms = {
                "none": partial(_told, stage, None, words),
                "gated": partial(_told, stage, tenant, words),
            }
            seen, load = in_turn(arms, rounds)
        rows.append(_row(after, count, seen["none"], seen["gated"], load))
        if progress:
            progress(len(rows), len(wanted))
    return rows


def _told(stage: Stage, tenant: StageTenant | None, words: Sequence[str]) -> dict[str, Any]:
    program = str(paths.workload_path("penstock-launches"))
    return stage.finish(stage.start(tenant, words, program=program))


def _row(
    after: str,
    count: int,
    native: Sequence[Mapping[str, Any]],
    shimmed: Sequence[Mapping[str, Any]],
    load: float,
) -> StaysRow:
    def median(told: Sequence[Mapping[str, Any]], when: str) -> float:
        return statistics.median(float(one[when]["median_ns"]) for one in told)

    def growth(one: Mapping[str, Any]) -> float:
        return float(one["after"]["median_ns"]) - float(one["before"]["median_ns"])

    stays = [growth(s) - growth(n) for n, s in zip(native, shimmed, strict=True)]
    low, middle, high = quartiles(stays)
    return StaysRow(
        after=NAMES[after],
        wanted=count,
        reached=min(int(one["reached"]) for one in shimmed),
        before_ns=median(shimmed, "before"),
        after_ns=median(shimmed, "after"),
        native_growth_ns=statistics.median(map(growth, native)),
        growth_ns=statistics.median(map(growth, shimmed)),
        stays_ns=middle,
        stays_low_ns=low,
        stays_high_ns=high,
        native_step_ns=statistics.median(one["last_step_ns"] for one in native),
        step_ns=statistics.median(one["last_step_ns"] for one in shimmed),
        rounds=len(stays),
        load=load,
    )


def figures(rows: Sequence[StaysRow]) -> list[Figure]:
    """One row of the results table for each of `rows`."""
    return [
        Figure(
            f"a launch after {row.wanted:,} {row.after}, less the same before",
            f"<= {MOST_NS} ns; all of them",
            f"{row.stays_ns:+.0f} ns ({row.stays_low_ns:+.0f} to {row.stays_high_ns:+.0f}) after "
            f"{row.reached:,}; the last of them took {row.step_ns:,.0f} ns each (without the shim "
            f"{row.native_step_ns:,.0f})",
            f"{row.rounds} rounds, load {row.load:g}",
            row.stays_ns <= MOST_NS and row.reached == row.wanted,
        )
        for row in rows
    ]
