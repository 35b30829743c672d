"""Benchmark of shares with and without time slices, for tenants on one device in one run.

Tenants run on a stage with real pages and the real shim, so the two rows of a set differ only in
whether the tenant's own gate or the time-slice scheduler decides when the tenant launches. The
reference is the simulated device's own record.
"""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.quota import Workload
from penstock.bench.stage import Stage, windows
from penstock_shim.time_slices import TimeSlices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.bench.stage import Sample
    from penstock_shim.pages import Mode

WARM_UP_S = 2.0
LONG_S = 3600.0


@dataclass(frozen=True)
class Tenant:
    """One tenant of a set: its grant and its workload."""

    cores: float  # percent
    workload: Workload


@dataclass(frozen=True)
class SlicesRow:
    """One set of tenants, with or without time slices. Errors are in points of device time."""

    tenants: int
    work: str
    mode: Mode
    turns: bool  # with time slices
    due: str  # percent: each tenant's grant, or in elastic mode its part of the total
    got: str
    worst_error_points: float  # of a tenant, over the whole measurement
    worst_window_points: float  # 95 % of the tenants' 1 s windows are closer than this
    total_percent: float
    turns_per_second: float
    thread_percent: float  # of a processor, used by the scheduler thread


def _alike(cores: Sequence[float], workload: Workload) -> tuple[Tenant, ...]:
    return tuple(Tenant(share, workload) for share in cores)


_EVEN = Workload(500)
_MIXED = (Workload(20), Workload(200), Workload(2000), Workload(5000))
SETS: dict[str, tuple[Mode, tuple[Tenant, ...]]] = {
    "500 us": ("strict", _alike((60, 35), _EVEN)),
    "500 us ± 90 %": ("strict", _alike((60, 35), Workload(500, jitter_percent=90))),
    "20 us beside 5 ms": ("strict", (Tenant(60, _MIXED[0]), Tenant(35, _MIXED[3]))),
    "launch and wait 200 us beside 500 us": (
        "strict",
        (Tenant(40, Workload(200, sync_every=1)), Tenant(50, _EVEN)),
    ),
    "launch and wait 2 ms ± 90 % beside 500 us": (
        "strict",
        (Tenant(40, Workload(2000, sync_every=1, jitter_percent=90)), Tenant(50, _EVEN)),
    ),
    "20 us, 200 us, 2 ms, 5 ms": (
        "strict",
        tuple(Tenant(c, w) for c, w in zip((35, 30, 20, 10), _MIXED, strict=True)),
    ),
    "500 us, eight": ("strict", _alike((25, 20, 15, 10, 10, 5, 5, 5), _EVEN)),
    "500 us, elastic": ("elastic", _alike((30, 17.5), _EVEN)),
    "500 us, eight elastic": ("elastic", _alike((12.5, 10, 7.5, 5, 5, 2.5, 2.5, 2.5), _EVEN)),
}


def run(
    *,
    simulate: str = "h200",
    sets: Sequence[str] = tuple(SETS),
    seconds: float = 5,
    progress: Callable[[int, int], None] | None = None,
) -> list[SlicesRow]:
    """Measure the named sets of `SETS`, without and with time slices.

    Raises:
        StageError: a tenant's program failed.
    """
    rows = []
    for name in sets:
        mode, tenants = SETS[name]
        for with_slices in (False, True):
            rows.append(measure(simulate, name, mode, tenants, seconds, with_slices=with_slices))
            if progress:
                progress(len(rows), 2 * len(sets))
    return rows


def measure(
    simulate: str,
    work: str,
    mode: Mode,
    tenants: Sequence[Tenant],
    seconds: float,
    *,
    with_slices: bool,
) -> SlicesRow:
    """Measure one set of tenants. Raises `StageError` if a tenant's program fails."""
    with contextlib.ExitStack() as stack:
        stage = stack.enter_context(Stage(simulate))
        scheduler = stack.enter_context(TimeSlices())
        shares = {f"t{i}": tenant.cores for i, tenant in enumerate(tenants)}
        whole = sum(shares.values())
        for (name, cores), tenant in zip(shares.items(), tenants, strict=True):
            # Without time slices, the page sets an elastic tenant's allowance; they sum to 100 %.
            made = stage.tenant(
                name,
                cores,
                sharers=len(tenants),
                mode=mode,
                allowance=100 * cores / whole if mode == "elastic" else 0,
            )
            if with_slices:
                scheduler.add(name, made.directory)
            stage.start(made, tenant.workload.arguments(LONG_S))
        stage.wait_until_busy(list(shares), 60)
        stage.watch(WARM_UP_S)
        before = list(scheduler.devices().values())
        samples = stage.watch(seconds)
        after = list(scheduler.devices().values())
    length_s = (samples[-1].at_ns - samples[0].at_ns) / 1e9
    got = {name: _percent(samples, name) for name in shares}
    total = sum(got.values())
    part = 1 if mode == "strict" else total / whole
    due = {name: part * share for name, share in shares.items()}
    errors = [abs(window.percent - due[name]) for name in due for window in windows(samples, name)]
    return SlicesRow(
        tenants=len(tenants),
        work=work,
        mode=mode,
        turns=with_slices,
        due=" ".join(f"{share:.1f}" for share in due.values()),
        got=" ".join(f"{share:.1f}" for share in got.values()),
        worst_error_points=max(abs(got[name] - due[name]) for name in due),
        worst_window_points=statistics.quantiles(errors, n=20)[-1],
        total_percent=total,
        turns_per_second=sum(a.slices - b.slices for a, b in zip(after, before, strict=True))
        / length_s,
        thread_percent=sum(
            a.thread_cpu_ns - b.thread_cpu_ns for a, b in zip(after, before, strict=True)
        )
        / length_s
        / 1e7,
    )


def _percent(samples: Sequence[Sample], name: str) -> float:
    used = samples[-1].busy_ns.get(name, 0) - samples[0].busy_ns.get(name, 0)
    return 100 * used / (samples[-1].at_ns - samples[0].at_ns)
