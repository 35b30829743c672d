"""The results table of all benchmarks with their targets, measured in one run.

Each row has the target, the measurement and whether the measurement meets the target. `details` of
the report holds every measurement that a row summarises.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.bench import (
    calls,
    collectives,
    launch,
    memory,
    quota,
    singly,
    start,
    starved,
    stays,
    suspend,
    tenants,
)
from penstock.bench.figure import Figure
from penstock.bench.machine import MachineFacts, machine_facts
from penstock.bench.quota import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

QUOTAS = (5, 10, 30, 50, 70, 90, 95)
KERNELS_US = (20, 200, 2000, 20000)
WAITING_QUOTAS = (10, 30, 50)
WAITING_KERNELS_US = (20, 100, 200, 2000)
PERIOD_US = 20000  # an indivisible launch of d us sets a floor of d / PERIOD_US points


@dataclass
class Report:
    """All results of one run."""

    machine: MachineFacts
    figures: list[Figure] = field(default_factory=list)
    details: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def run(
    *,
    simulate: str = "h200",
    seconds: float = 5,
    long_seconds: float = 60,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run all benchmarks, which takes about twenty minutes with the defaults.

    Args:
        simulate: profile of the simulated device.
        seconds: how long each quota is measured.
        long_seconds: how long the bias is measured.
        say: called with the name of the current measurement.

    Raises:
        StageError: a workload failed.
    """
    report = Report(machine_facts(simulate))

    def note(name: str, rows: Sequence[Any], figures: Sequence[Figure]) -> None:
        report.details[name] = [asdict(row) for row in rows]
        report.figures += figures

    backlogged = _measure_quotas(simulate, _backlogged(), seconds, say)
    note("backlogged", backlogged, [_mean(backlogged), _p95(backlogged)])
    biased = [(30.0, Workload(kernel_us=200)), (70.0, Workload(kernel_us=2000, processes=4))]
    long_rows = _measure_quotas(simulate, biased, long_seconds, say)
    note(
        "bias",
        long_rows,
        [
            _bias(long_rows, f"over {long_seconds:g} s"),
            _bias(backlogged, f"over {seconds:g} s, backlogged"),
        ],
    )
    waiting = _measure_quotas(simulate, _waiting(), seconds, say)
    settled = [
        _settle(backlogged, "backlogged"), _settle(waiting, "launch and wait")
    ]  # fmt: skip
    note("waiting", waiting, [*settled, *_waiting_figures(waiting)])
    say("tenants")
    tenant_rows = tenants.run(simulate=simulate, seconds=seconds)
    note("tenants", tenant_rows, _tenants(tenant_rows))
    say("launches and allocations")
    launch_rows = launch.run(simulate=simulate)
    note("launch", launch_rows, _launches(launch_rows))
    for what, kind, part in (
        ("launches that come singly, and decode-like loops", "singly", singly),
        ("costs that stay", "stays", stays),
        ("ranks that meet", "collectives", collectives),
        ("short of processors", "starved", starved),
    ):
        say(what)
        rows = part.run(simulate=simulate)
        note(kind, rows, part.figures(rows))
    say("driver calls")
    call_rows = calls.run(simulate=simulate)
    note("calls", call_rows, [_calls(call_rows)])
    say("starts")
    start_rows = start.run(simulate=simulate)
    note("start", start_rows, _starts(start_rows))
    say("suspension")
    suspend_rows = suspend.run(simulate=simulate)
    note("suspend", suspend_rows, [_suspend(suspend_rows)])
    say("memory")
    memory_rows = memory.run(simulate=simulate)
    note("memory", memory_rows, [_memory(memory_rows[0])])
    return report


def _backlogged() -> list[tuple[float, Workload]]:
    """Every quota with every kernel; kinds of launch and numbers of processes cover all pairs."""
    return [
        (
            quota_percent,
            Workload(
                kernel_us=kernel_us,
                launch="graph" if (i + k) % 2 else "plain",
                processes=4 if (i + k // 2) % 2 else 1,
            ),
        )
        for i, quota_percent in enumerate(QUOTAS)
        for k, kernel_us in enumerate(KERNELS_US)
    ]


def _waiting() -> list[tuple[float, Workload]]:
    return [
        (quota_percent, Workload(kernel_us=kernel_us, processes=processes, sync_every=1))
        for quota_percent in WAITING_QUOTAS
        for kernel_us in WAITING_KERNELS_US
        for processes in (1, 4)
    ]


def _measure_quotas(
    simulate: str,
    cells: Sequence[tuple[float, Workload]],
    seconds: float,
    say: Callable[[str], None],
) -> list[quota.QuotaRow]:
    rows = []
    for percent, workload in cells:
        say(f"{percent:g} % of {workload}")
        rows.append(quota.measure(simulate, percent, workload, seconds))
    return rows


def _name(row: quota.QuotaRow) -> str:
    many = f" x{row.processes}" if row.processes > 1 else ""
    waited = " waited for" if row.sync_every else ""
    return f"{row.quota:g} %, {row.kernel_us:g} us {row.launch}{waited}{many}"


def _within(
    rows: Sequence[quota.QuotaRow],
    error: Callable[[quota.QuotaRow], float],
    bound: Callable[[quota.QuotaRow], float],
) -> tuple[str, str, bool]:
    """(measured, runs, reached) of an error that must be within its bound in every row."""
    good = [row for row in rows if error(row) <= bound(row)]
    worst = max(rows, key=lambda row: error(row) - bound(row))
    median = statistics.median(error(row) for row in rows)
    measured = f"median {median:.2f}, worst {error(worst):.2f} ({_name(worst)})"
    runs = f"{len(good)} of {len(rows)} cells within"
    return measured, runs, len(good) == len(rows)


def _mean(rows: Sequence[quota.QuotaRow]) -> Figure:
    found = _within(rows, lambda r: r.mean_error_points, lambda r: 0.5 + r.kernel_us / PERIOD_US)
    return Figure("quota error, 1 s windows, backlogged: mean", "<= 0.5 + d/20ms points", *found)


def _p95(rows: Sequence[quota.QuotaRow]) -> Figure:
    found = _within(rows, lambda r: r.p95_error_points, lambda r: 1 + r.kernel_us / PERIOD_US)
    return Figure("the same, 95 % of windows", "<= 1 + d/20ms points", *found)


def _settle(rows: Sequence[quota.QuotaRow], which: str) -> Figure:
    found = _within(rows, lambda r: r.settled_error_points, lambda _: 2)
    return Figure(
        f"windows that start 200 ms after a change, {which}", "within 2 points", *found
    )  # fmt: skip


def _bias(rows: Sequence[quota.QuotaRow], over: str) -> Figure:
    found = _within(rows, lambda r: abs(r.bias_points), lambda _: 0.3)
    return Figure(f"bias {over}", "<= 0.3 points", *found)


def _waiting_figures(rows: Sequence[quota.QuotaRow]) -> list[Figure]:
    longer = [row for row in rows if row.kernel_us >= 100]
    shorter = [row for row in rows if row.kernel_us < 100]
    return [
        Figure(
            "launch and wait, from 100 us: mean error",
            "<= 1 point",
            *_within(longer, lambda r: r.mean_error_points, lambda _: 1),
        ),
        Figure(
            "launch and wait, below 100 us: mean error",
            "<= 5 % of the quota",
            *_within(shorter, lambda r: r.mean_error_points, lambda r: 0.05 * r.quota),
        ),
    ]


def _tenants(rows: Sequence[tenants.TenantsRow]) -> list[Figure]:
    figures = []
    for mode in ("strict", "elastic"):
        those = [row for row in rows if row.mode == mode]
        worst = max(those, key=lambda row: row.worst_error_points)
        figures.append(
            Figure(
                f"2, 4, 8 tenants, 500 us kernels, a set of shares each, {mode}: each one's share",
                "within 1 point",
                f"worst {worst.worst_error_points:.2f} ({worst.tenants} tenants: {worst.got})",
                f"{len(those)} sets",
                worst.worst_error_points <= 1,
            )
        )
    elastic = [row for row in rows if row.mode == "elastic"]
    least = min(row.total_percent for row in elastic)
    figures.append(
        Figure(
            "the same, elastic: total use",
            ">= 97 %",
            f"least {least:.1f} %",
            f"{len(elastic)} sets",
            least >= 97,
        )
    )
    return figures


def _launches(rows: Sequence[launch.LaunchRow]) -> list[Figure]:
    aims = {
        ("launch", "ungated"): 60,
        ("launch", "gated"): 150,
        ("allocate", "gated"): 300,
    }
    figures = []
    for row in rows:
        aim = aims.get((row.call, row.arm))
        if aim is None:
            continue
        figures.append(
            Figure(
                f"{row.call}, {row.arm}: added median",
                f"<= {aim} ns",
                f"{row.added_median_ns:.0f} ns ({row.added_low_ns:.0f} to {row.added_high_ns:.0f}; "
                f"mean {row.added_mean_ns:.0f})",
                f"{row.rounds} rounds of {row.calls}",
                row.added_median_ns <= aim,
            )
        )
    refusal = next(row for row in rows if row.call == "refuse" and row.arm == "gated")
    in_all = refusal.native_median_ns + refusal.added_median_ns
    figures.append(
        Figure(
            "refused allocation, in all",
            "<= 300 ns",
            f"{in_all:.0f} ns (the driver alone: {refusal.native_median_ns:.0f})",
            f"{refusal.rounds} rounds of {refusal.calls}",
            in_all <= 300,
        )
    )
    return figures


def _calls(rows: Sequence[calls.CallsRow]) -> Figure:
    worst = max(rows, key=lambda row: row.added_calls_per_s)
    return Figure(
        "driver calls of the shim's own",
        "<= 8,000 a second a device",
        f"worst {worst.added_calls_per_s:,.0f} ({worst.workload})",
        f"{len(rows)} workloads",
        worst.added_calls_per_s <= 8000,
    )


def _starts(rows: Sequence[start.StartRow]) -> list[Figure]:
    spread = "{0.added_median_us:.0f} us ({0.added_low_us:.0f} to {0.added_high_us:.0f})"
    no_gpu = next(row for row in rows if row.what == "no gpu")
    first = sorted((r for r in rows if r.what == "first calls"), key=lambda r: r.neighbours)
    # Whether the cost grows from no neighbours to the most neighbours, as far as quartiles show.
    grows = first[-1].added_low_us > first[0].added_high_us
    return [
        Figure(
            "start of a process that uses no GPU: added",
            "<= 1 ms",
            spread.format(no_gpu),
            f"{no_gpu.rounds} rounds",
            no_gpu.added_median_us <= 1000,
        ),
        Figure(
            "first CUDA calls in a tenant: added",
            "<= 5 ms, not growing",
            "; ".join(f"{row.neighbours} neighbours: {spread.format(row)}" for row in first),
            f"{first[0].rounds} rounds each",
            all(row.added_median_us <= 5000 for row in first) and not grows,
        ),
    ]


def _suspend(rows: Sequence[suspend.SuspendRow]) -> Figure:
    worst = max(rows, key=lambda row: row.busy_after_worst_ms - row.bound_ms)
    return Figure(
        "suspend: device time after the flag",
        "<= in flight (20 ms) + the longest launch",
        f"worst {worst.busy_after_worst_ms:.1f} ms ({worst.kernel_us:g} us kernels); median "
        f"{worst.busy_after_median_ms:.1f} ms",
        f"{len(rows)} x {worst.rounds} rounds",
        all(row.busy_after_worst_ms <= row.bound_ms for row in rows),
    )


def _memory(row: memory.MemoryRow) -> Figure:
    over = row.peak_ledger_bytes - row.limit_bytes
    held = row.peak_device_bytes - row.limit_bytes
    return Figure(
        f"memory limit, {row.processes} racing processes; after kill -9",
        "never over by a byte; exactly zero",
        f"peak {over:+,} bytes to the limit ({held:+,} in the device's record); "
        f"{row.left_bytes} bytes left, worst return "
        f"{row.worst_return_ms:.1f} ms",
        f"{row.granted + row.refused:,} requests, {row.kills} kills",
        over <= 0 and held <= 0 and row.left_bytes == 0,
    )
