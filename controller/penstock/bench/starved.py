"""Benchmark of a quota on a node short of processors, where busy loops take the program's two.

Threads of the program decide on its launches. If these threads seldom run, the program launches
less than the quota allows, or the threads notice too late that it launched more. The program is due
its quota, or less if it gets less beside the same loops without the shim. The reference is the
simulated device's own record.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.figure import Figure
from penstock.bench.interleaved import load_average
from penstock.bench.quota import Workload
from penstock.bench.stage import Stage, windows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LOOPS = 16
PROCESSORS = 2
QUOTAS = (10, 30, 50)
WORKLOADS = (
    Workload(kernel_us=2000),
    Workload(kernel_us=200),
    Workload(kernel_us=2000, processes=4),
    Workload(kernel_us=200, sync_every=1),
)
WITHIN_POINTS = 3.0
WARM_UP_S = 1.0
LOOPS_END_S = 300.0  # the loops end after this time even if the benchmark is killed
SPIN = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""


@dataclass(frozen=True)
class StarvedRow:
    """One workload at one quota beside busy loops. Errors are in points of the device's time."""

    quota: float  # percent
    kernel_us: float
    processes: int
    sync_every: int  # launches between two synchronisations; 0: backlogged
    loops: int
    processors: int
    full_percent: float  # use by the same program beside the loops, without the shim
    due_percent: float  # the smaller of quota and `full_percent`
    mean_error_points: float  # of 1 s windows, against what is due
    worst_error_points: float
    bias_points: float  # over the whole measurement; positive: more than due
    windows: int
    load: float


def run(
    *,
    simulate: str = "h200",
    quotas: Sequence[float] = QUOTAS,
    workloads: Sequence[Workload] = WORKLOADS,
    loops: int = LOOPS,
    seconds: float = 4,
    progress: Callable[[int, int], None] | None = None,
) -> list[StarvedRow]:
    """Measure every workload at every quota beside `loops` busy loops on `PROCESSORS` processors.

    Raises:
        StageError: a program failed.
    """
    rows = []
    for workload in workloads:
        with _crowd(loops) as processors:
            full = _percents(simulate, None, workload, seconds)[0]
        for quota in quotas:
            with _crowd(loops):
                whole, seen = _percents(simulate, quota, workload, seconds)
                load = load_average()
            due = min(quota, full)
            errors = [abs(percent - due) for percent in seen]
            rows.append(
                StarvedRow(
                    quota=quota,
                    kernel_us=workload.kernel_us,
                    processes=workload.processes,
                    sync_every=workload.sync_every,
                    loops=loops,
                    processors=processors,
                    full_percent=full,
                    due_percent=due,
                    mean_error_points=statistics.fmean(errors),
                    worst_error_points=max(errors),
                    bias_points=whole - due,
                    windows=len(errors),
                    load=load,
                )
            )
            if progress:
                progress(len(rows), len(workloads) * len(quotas))
    return rows


@contextlib.contextmanager
def _crowd(loops: int) -> Iterator[int]:
    """Runs busy loops on two processors, and binds this process and its children to these.

    Yields the number of the processors, because a machine may have only one.
    """
    before = os.sched_getaffinity(0)
    chosen = set(sorted(before)[:PROCESSORS])
    os.sched_setaffinity(0, chosen)
    command = [sys.executable, "-S", "-c", SPIN, str(LOOPS_END_S)]
    children = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield len(chosen)
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()
        os.sched_setaffinity(0, before)


def _percents(
    simulate: str, quota: float | None, workload: Workload, seconds: float
) -> tuple[float, list[float]]:
    """The device's busy percentage for the program, over the whole time and in 1 s windows.

    If `quota` is None, the program runs without the shim.
    """
    with Stage(simulate) as stage:
        tenant = None if quota is None else stage.tenant("starved", quota)
        name = tenant.name if tenant else "bare"
        for _ in range(workload.processes):
            stage.start(tenant, workload.arguments(seconds + 60))
        stage.wait_until_busy([name], 60)
        stage.watch(WARM_UP_S)
        samples = stage.watch(max(seconds, 1.2))
        used = samples[-1].busy_ns[name] - samples[0].busy_ns[name]
        whole = 100 * used / (samples[-1].at_ns - samples[0].at_ns)
        return whole, [window.percent for window in windows(samples, name)]


def _name(row: StarvedRow) -> str:
    many = f" x{row.processes}" if row.processes > 1 else ""
    waits = " waited for" if row.sync_every else ""
    return f"{row.quota:g} %, {row.kernel_us:g} us{waits}{many}"


def figures(rows: Sequence[StarvedRow]) -> list[Figure]:
    """The results as one row of the results table."""
    worst = max(rows, key=lambda row: row.mean_error_points)
    good = [row for row in rows if row.mean_error_points <= WITHIN_POINTS]
    median = statistics.median(row.mean_error_points for row in rows)
    return [
        Figure(
            f"quota beside {worst.loops} busy loops on {worst.processors} processors: mean error",
            f"1 s windows within {WITHIN_POINTS:g} points",
            f"median {median:.2f}, worst {worst.mean_error_points:.2f} ({_name(worst)}: bias "
            f"{worst.bias_points:+.2f}; without the shim it gets {worst.full_percent:.0f} %)",
            f"{len(good)} of {len(rows)} cells within, load {max(row.load for row in rows):g}",
            len(good) == len(rows),
        )
    ]
