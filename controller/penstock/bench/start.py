"""Benchmark of the shim's overhead at process start, for programs with and without GPU use.

Every round runs the program with and without the shim, and the difference is taken within a round.
First driver calls are measured with no other process in the tenant, and with other processes that
hold slots.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.stage import Stage, StageError, StageTenant
from penstock_shim import paths

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

NO_GPU_PROGRAM = "/bin/true"
NEIGHBOURS = (0, 100)
PHASES = ("load_ns", "init_ns", "context_ns", "allocate_ns")


@dataclass(frozen=True)
class StartRow:
    """Overhead of the shim for one kind of start, in microseconds."""

    what: str  # no gpu: a process from spawn to its end; first calls: dlopen to first allocation
    neighbours: int  # other running processes of the tenant
    native_median_us: float
    added_median_us: float
    added_low_us: float  # lower quartile over rounds
    added_high_us: float  # upper quartile over rounds
    rounds: int


def run(
    *,
    simulate: str = "h200",
    rounds: int = 100,
    neighbours: Sequence[int] = NEIGHBOURS,
    progress: Callable[[int, int], None] | None = None,
) -> list[StartRow]:
    """Measure both kinds of start.

    Args:
        simulate: profile of the simulated device.
        rounds: how often each program runs with and without the shim.
        neighbours: how many other processes the tenant has, one row each.
        progress: called with (rows done, rows).

    Raises:
        StageError: a program failed.
    """
    rows = []
    with Stage(simulate) as stage:
        tenant = stage.tenant("bench", 100)
        rows.append(_row("no gpu", 0, [_spawn_pair(stage, tenant) for _ in range(rounds)]))
        held: list[subprocess.Popen[str]] = []
        for count in sorted(neighbours):
            if progress:
                progress(len(rows), 1 + len(neighbours))
            held += [_hold(stage, tenant) for _ in range(count - len(held))]
            pairs = [_first_calls_pair(stage, tenant) for _ in range(rounds)]
            rows.append(_row("first calls", count, pairs))
    if progress:
        progress(len(rows), 1 + len(neighbours))
    return rows


def _spawn_pair(stage: Stage, tenant: StageTenant) -> tuple[float, float]:
    return (
        _spawn_ns(stage.environment(None)),
        _spawn_ns(stage.environment(tenant)),
    )


def _spawn_ns(environment: Mapping[str, str]) -> float:
    """Time from the spawn of a program that uses no GPU to its end."""
    began = time.monotonic_ns()
    child = os.posix_spawn(NO_GPU_PROGRAM, [NO_GPU_PROGRAM], environment)
    _, status = os.waitpid(child, 0)
    took = time.monotonic_ns() - began
    if status:
        raise StageError(f"{NO_GPU_PROGRAM} ended with {os.waitstatus_to_exitcode(status)}")
    return took


def _first_calls_pair(stage: Stage, tenant: StageTenant) -> tuple[float, float]:
    return _first_calls_ns(stage, None), _first_calls_ns(stage, tenant)


def _first_calls_ns(stage: Stage, tenant: StageTenant | None) -> float:
    program = str(paths.workload_path("penstock-start"))
    report = stage.finish(stage.start(tenant, [], program=program))
    return sum(float(report[phase]) for phase in PHASES)


def _hold(stage: Stage, tenant: StageTenant) -> subprocess.Popen[str]:
    """Starts a process that makes its first calls and keeps running."""
    program = str(paths.workload_path("penstock-start"))
    child = stage.start(tenant, ["--hold"], program=program)
    line = child.stdout.readline() if child.stdout else ""
    if not line:
        stage.finish(child)
        raise StageError("a process that should keep running in the tenant ended")
    json.loads(line)
    return child


def _row(what: str, neighbours: int, pairs: Sequence[tuple[float, float]]) -> StartRow:
    added = [(shimmed - native) / 1e3 for native, shimmed in pairs]
    low, middle, high = statistics.quantiles(added, n=4) if len(added) > 1 else added * 3
    return StartRow(
        what=what,
        neighbours=neighbours,
        native_median_us=round(statistics.median(native for native, _ in pairs) / 1e3, 1),
        added_median_us=round(middle, 1),
        added_low_us=round(low, 1),
        added_high_us=round(high, 1),
        rounds=len(pairs),
    )
