"""Benchmark of suspension: device time after a suspend, and delay until work after a resume.

The reference is the device's own record. Busy time after the flag was set is work in flight.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.quota import Workload
from penstock.bench.stage import Stage, StageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.bench.stage import StageTenant

KERNELS_US = (200, 2000, 20000)
CORES = 50.0  # percent
IN_FLIGHT_BOUND_MS = 20.0  # the gate's period, which is the most it admits ahead
QUIET_S = 0.4
BACK_S = 5.0


@dataclass(frozen=True)
class SuspendRow:
    """A backlogged tenant that is suspended and resumed repeatedly; times in milliseconds."""

    kernel_us: float
    busy_after_median_ms: float  # device time after the flag was set
    busy_after_worst_ms: float
    bound_ms: float  # in flight plus the longest launch
    resume_median_ms: float  # until the device works for the tenant again
    rounds: int


def run(
    *,
    simulate: str = "h200",
    kernels_us: Sequence[float] = KERNELS_US,
    rounds: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> list[SuspendRow]:
    """Measure one row per kernel length.

    Raises:
        StageError: the workload failed, or did not stop or resume.
    """
    rows = []
    for kernel_us in kernels_us:
        rows.append(_measure(simulate, kernel_us, rounds))
        if progress:
            progress(len(rows), len(kernels_us))
    return rows


def _measure(simulate: str, kernel_us: float, rounds: int) -> SuspendRow:
    after_ms, resume_ms = [], []
    with Stage(simulate) as stage:
        tenant = stage.tenant("bench", CORES)
        stage.start(tenant, Workload(kernel_us=kernel_us).arguments(3600))
        stage.wait_until_busy([tenant.name])
        for _ in range(rounds):
            stage.watch(0.3)
            before = stage.sample().busy_ns[tenant.name]
            tenant.change(suspended=True)
            stage.watch(QUIET_S)
            still = stage.sample().busy_ns[tenant.name]
            stage.watch(0.1)
            if stage.sample().busy_ns[tenant.name] != still:
                raise StageError(f"the tenant still works {QUIET_S} s after it was suspended")
            after_ms.append((still - before) / 1e6)
            resume_ms.append(_resume_ms(stage, tenant, still))
    return SuspendRow(
        kernel_us=kernel_us,
        busy_after_median_ms=round(statistics.median(after_ms), 3),
        busy_after_worst_ms=round(max(after_ms), 3),
        bound_ms=IN_FLIGHT_BOUND_MS + kernel_us / 1e3,
        resume_median_ms=round(statistics.median(resume_ms), 3),
        rounds=rounds,
    )


def _resume_ms(stage: Stage, tenant: StageTenant, still_ns: int) -> float:
    began_ns = tenant.change(suspended=False)
    give_up = time.monotonic() + BACK_S
    while (seen := stage.sample()).busy_ns[tenant.name] == still_ns:
        if time.monotonic() > give_up:
            raise StageError(f"the tenant does not work {BACK_S} s after it was resumed")
    return (seen.at_ns - began_ns) / 1e6
