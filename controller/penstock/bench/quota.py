"""Benchmark of quota accuracy: a tenant's use of a device over windows of one second.

The reference is the simulated device's own record of busy time, never the shim's counters. After
the measurement the quota changes while the programs run. `settle_ms` is the time until every later
window of one second is within `SETTLED_POINTS` of the new quota. `settled_error_points` is the
error of the worst window that begins `SETTLE_TIME_NS` after the change or later.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.bench.stage import Stage, StageError, StageTenant, windows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.bench.stage import Window

Launch = Literal["plain", "graph"]

QUOTAS = (10, 30, 50, 70, 90)
KERNELS_US = (200, 2000)
LAUNCHES: tuple[Launch, ...] = ("plain", "graph")
PROCESSES = (1, 4)
GRAPH_NODES = 4
SETTLED_POINTS = 2.0
SETTLE_TIME_NS = 200_000_000
WARM_UP_S = 1.0
WATCHED_AFTER_CHANGE_S = 3.0


@dataclass(frozen=True)
class Workload:
    """The work of each process of a tenant."""

    kernel_us: float = 200  # device time of a launch, microseconds
    launch: Launch = "plain"
    processes: int = 1
    sync_every: int = 0  # launches between two synchronisations; 0: backlogged
    jitter_percent: float = 5

    def arguments(self, seconds: float) -> list[str]:
        """The launcher's command line."""
        nodes = GRAPH_NODES if self.launch == "graph" else 1
        words = ["--kernel-us", str(self.kernel_us / nodes), "--jitter", str(self.jitter_percent)]
        words += ["--seconds", str(seconds), "--sync-every", str(self.sync_every)]
        return [*words, "--graph", str(nodes)] if self.launch == "graph" else words


@dataclass(frozen=True)
class QuotaRow:
    """One workload at one quota. Errors are in points: percent of the device's time."""

    quota: float  # percent
    kernel_us: float  # a graph: of all its nodes together
    launch: Launch
    processes: int
    sync_every: int  # launches between two synchronisations; 0: backlogged
    mean_error_points: float
    p95_error_points: float
    bias_points: float  # over the whole measurement; positive: more than granted
    settle_ms: float | None  # after a change of quota; None if not within the measured time
    settled_error_points: float  # worst window that begins 200 ms after the change, or later
    windows: int


def run(
    *,
    simulate: str = "h200",
    quotas: Sequence[float] = QUOTAS,
    kernels_us: Sequence[float] = KERNELS_US,
    launches: Sequence[Launch] = LAUNCHES,
    processes: Sequence[int] = PROCESSES,
    sync_every: int = 0,
    jitter_percent: float = 5,
    seconds: float = 5,
    progress: Callable[[int, int], None] | None = None,
) -> list[QuotaRow]:
    """Measure every combination, one after the other.

    Args:
        simulate: profile of the simulated device.
        quotas: percent of device time.
        kernels_us: device time of one launch, microseconds.
        launches: single kernels, or graphs of `GRAPH_NODES` kernels of the same total length.
        processes: processes of the tenant, all alike.
        sync_every: launches after which a program waits for the device; 0 for never.
        jitter_percent: how much single kernels differ from `kernels_us`.
        seconds: how long each combination is measured.
        progress: called with (rows done, rows).

    Raises:
        StageError: a workload failed.
    """
    combinations = list(itertools.product(quotas, kernels_us, launches, processes))
    rows = []
    for quota, kernel_us, launch, count in combinations:
        workload = Workload(kernel_us, launch, count, sync_every, jitter_percent)
        rows.append(measure(simulate, quota, workload, seconds))
        if progress:
            progress(len(rows), len(combinations))
    return rows


def measure(simulate: str, quota: float, workload: Workload, seconds: float) -> QuotaRow:
    """Measure one workload at one quota on a device of its own.

    Raises:
        StageError: the workload failed.
    """
    with Stage(simulate) as stage:
        tenant = stage.tenant("bench", quota)
        for _ in range(workload.processes):
            stage.start(tenant, workload.arguments(seconds + 60))
        stage.wait_until_busy([tenant.name])
        stage.watch(WARM_UP_S)
        samples = stage.watch(seconds)
        seen = [window.percent for window in windows(samples, tenant.name)]
        whole = samples[-1].at_ns - samples[0].at_ns
        used = samples[-1].busy_ns[tenant.name] - samples[0].busy_ns[tenant.name]
        errors = [abs(percent - quota) for percent in seen]
        if len(errors) < 2:
            raise StageError(f"{seconds:g} s are too few for windows of one second; measure longer")
        settle_ms, settled_error = _settle(stage, tenant, quota)
        return QuotaRow(
            quota=quota,
            kernel_us=workload.kernel_us,
            launch=workload.launch,
            processes=workload.processes,
            sync_every=workload.sync_every,
            mean_error_points=statistics.fmean(errors),
            p95_error_points=statistics.quantiles(errors, n=20)[-1],
            bias_points=100 * used / whole - quota,
            settle_ms=settle_ms,
            settled_error_points=settled_error,
            windows=len(errors),
        )


def _settle(stage: Stage, tenant: StageTenant, quota: float) -> tuple[float | None, float]:
    """Changes the quota; returns the time until usage follows (ms), and the worst later error."""
    new = 20.0 if quota > 45 else 70.0
    changed_ns = tenant.change(cores_permille=round(new * 10), allowance_permille=round(new * 10))
    samples = stage.watch(WATCHED_AFTER_CHANGE_S)
    after: list[Window] = [w for w in windows(samples, tenant.name) if w.begin_ns >= changed_ns]
    settled = [w for w in after if w.begin_ns >= changed_ns + SETTLE_TIME_NS]
    worst = max(abs(w.percent - new) for w in settled)
    outside = [w for w in after if abs(w.percent - new) > SETTLED_POINTS]
    if not outside:
        return 0.0, worst
    later = [w for w in after if w.begin_ns > outside[-1].begin_ns]
    return (later[0].begin_ns - changed_ns) / 1e6 if later else None, worst
