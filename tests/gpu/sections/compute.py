"""Quotas of compute compared with the device's own record.

In a cell a tenant's programs run at one quota for some seconds, then at another. Together the cells
contain every pair of quota, kernel length, manner of launch and launching processes that matters,
not every combination.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tests.gpu.budget import Check
from tests.gpu.children import FailedError
from tests.gpu.conditions import pairs_of
from tests.gpu.load import Load, Work, sleep_until
from tests.gpu.preflight import needs_sharing
from tests.gpu.rows import Outcome

from penstock_shim.profiles import load_profile

if TYPE_CHECKING:
    from tests.gpu.busy import BusyTime
    from tests.gpu.setting import Setting

NODES = 4
KNOWN_POINTS = 0.2  # less explains nothing
ELASTIC_PERCENT = 97
LONG_US = 5000  # as the gate has it
SHORT_US = 2000  # kernels up to here add nothing to what several tenants may be off
PERIOD_US = 20000  # an indivisible launch of d us sets a floor of d / PERIOD_US points
WARM_UP_S, WATCHED_S, CHANGED_S = 1.0, 3.0, 1.6
SETTLE_NS = 200_000_000
SETTLED_POINTS = 2.0
FEWEST_WINDOWS = 5

CELLS: list[tuple[float, Work]] = [  # quota in percent; the most telling ones first
    (50, Work(kernel_us=200)),
    (30, Work(kernel_us=2000, nodes=NODES, processes=4)),
    (70, Work(kernel_us=20)),
    (50, Work(kernel_us=200, sync_every=1, threads=4)),
    (30, Work(kernel_us=2000, blocks=True)),
    (30, Work(kernel="sweep")),
    (70, Work(kernel="multiply")),
    (10, Work(kernel_us=200, processes=4)),
    (90, Work(kernel_us=20000)),
    (5, Work(kernel_us=20, nodes=NODES)),
    (30, Work(kernel_us=100, sync_every=1)),
    (30, Work(kernel_us=2000, threads=4)),
    (95, Work(kernel_us=2000, processes=4)),
    (50, Work(kernel_us=20, nodes=NODES, processes=4)),
    (10, Work(kernel_us=20000, nodes=NODES)),
    (70, Work(kernel_us=200, nodes=NODES)),
    (50, Work(kernel_us=200, sync_every=1, processes=4)),
    (5, Work(kernel_us=2000)),
    (90, Work(kernel_us=200, processes=4)),
    (95, Work(kernel_us=20)),
]
SETS: list[tuple[str, list[float]]] = [  # mode, granted percent
    ("strict", [60, 35]),
    ("elastic", [30, 17.5]),
    ("strict", [35, 30, 20, 10]),
    ("elastic", [17.5, 15, 10, 5]),
]
LENGTHS_US = (500, 200, 2000, 20)  # of the tenants' kernels, in turn, in an uneven set


def checks() -> list[Check]:
    """Cells and sets of tenants, mixed: what is cut last is what tells least."""
    cells = [_cell(quota, work) for quota, work in CELLS]
    sets = [_tenants(mode, granted) for mode, granted in SETS]
    uneven = _tenants("strict", [40, 30, 20], uneven=True)
    check = Check("compute", "the trace against NVML's utilisation", _against_nvml, 8, 60)
    return [cells[0], check, *cells[1:3], sets[0], *cells[3:6], sets[1], *cells[6:9], uneven,
            *cells[9:12], *sets[2:], *cells[12:]]  # fmt: skip


def _cell(quota: float, work: Work) -> Check:
    requires = needs_sharing if work.processes > 1 else None
    run = partial(measure_cell, quota, work)
    return Check("compute", f"{quota:g} %: {work}", run, 8, 90, requires, pairs_of(quota, work))


def _tenants(mode: str, granted: list[float], *, uneven: bool = False) -> Check:
    words = " + ".join(f"{share:g}" for share in granted)
    kind = f"{mode}, kernels of different lengths" if uneven else mode
    works = [Work(kernel_us=LENGTHS_US[n % 4] if uneven else 500) for n in range(len(granted))]
    run = partial(measure_tenants, mode, granted, works)
    return Check("compute", f"tenants {words}, {kind}", run, 8 + len(granted), 90, needs_sharing)


def measure_cell(quota: float, work: Work, setting: Setting) -> Outcome:
    """One tenant at one quota, and at another one after a change."""
    seconds = setting.few(round(WATCHED_S * 10), 13) / 10
    with contextlib.closing(setting.arena.tenant(quota)) as tenant:
        start = partial(setting.arena.inside, tenant)
        with Load(setting, {tenant.name: (work, start)}) as load:
            begin_ns = time.monotonic_ns() + round(WARM_UP_S * 1e9)
            sleep_until(begin_ns, load)
            end_ns = begin_ns + round(seconds * 1e9)
            sleep_until(end_ns, load)
            new = 20.0 if quota > 45 else 70.0
            permille = round(new * 10)
            changed_ns = tenant.change(cores_permille=permille, allowance_permille=permille)
            last_ns = changed_ns + round(CHANGED_S * 1e9)
            sleep_until(last_ns, load)
            busy = load.finish()[tenant.name]
    outcome = judge_cell(quota, new, work, busy, (begin_ns, end_ns, changed_ns, last_ns))
    return with_reason(outcome, known_reason(max(quota, new), work, setting))


def judge_cell(
    quota: float, new: float, work: Work, busy: BusyTime, times_ns: tuple[int, int, int, int]
) -> Outcome:
    """The figures of a cell by the device's own record.

    Args:
        quota: percent, while it was watched.
        new: percent, after the change.
        work: what ran.
        busy: the truth.
        times_ns: begin and end of the watch, the change, the end.

    Raises:
        FailedError: too little was seen to say anything.
    """
    begin_ns, end_ns, changed_ns, last_ns = times_ns
    errors = [abs(percent - quota) for _, percent in busy.windows(begin_ns, end_ns)]
    after = busy.windows(changed_ns, last_ns)
    settled = [abs(percent - new) for at, percent in after if at >= changed_ns + SETTLE_NS]
    if len(errors) < FEWEST_WINDOWS or not settled:
        raise FailedError(f"only {len(errors)} windows of a second were seen")
    mean, p95 = statistics.fmean(errors), statistics.quantiles(errors, n=20)[-1]
    bias = busy.percent(begin_ns, end_ns) - quota
    floor = work.kernel_us / PERIOD_US
    waits = work.sync_every > 0 or work.blocks
    most_mean = (1.0 if work.kernel_us >= 100 else 0.05 * quota) if waits else 0.5 + floor
    most_p95 = 2 * most_mean if waits else 1 + floor
    return Outcome(
        f"mean error {mean:.2f}, p95 {p95:.2f}, bias {bias:+.2f} points; worst from 200 ms after a "
        f"change to {new:g} %: {max(settled):.2f}",
        figures={"mean_error_points": mean, "p95_error_points": p95, "bias_points": bias,
                 "settled_error_points": max(settled)},
        aim=f"mean <= {most_mean:.2f}, p95 <= {most_p95:.2f}, settled <= {SETTLED_POINTS:g}",
        reached=mean <= most_mean and p95 <= most_p95 and max(settled) <= SETTLED_POINTS,
    )  # fmt: skip


def with_reason(outcome: Outcome, reason: str) -> Outcome:
    """With what is known of why, where the aim was missed."""
    if outcome.reached or not reason:
        return outcome
    return replace(outcome, measured=f"{outcome.measured}; why: {reason}")


def known_reason(quota: float, work: Work, setting: Setting) -> str:
    """What takes of a share on the simulated device, as its profile has it; "": nothing known.

    Nothing is said of a real one: there its gaps and switches are still to be measured.
    """
    if setting.arena.machine is None or not setting.arena.simulate:
        return ""
    costs = load_profile(setting.arena.simulate.partition(",")[0]).figures
    gap_us = costs["estimates.kernel_gap_ns"] / 1000
    switch_us, slice_us = (costs[f"estimates.{n}_us"] for n in ("context_switch", "time_slice"))
    said = []
    points = quota * gap_us / (work.kernel_us + gap_us)  # a graph's nodes follow without a gap
    if work.kernel == "spin" and points >= KNOWN_POINTS:
        said.append(
            f"{gap_us:g} us between two launches, which the shim charges and the device's record "
            f"leaves out: about {points:.1f} points at {quota:g} %"
        )
    if work.kernel_us > SHORT_US:
        said.append(
            f"a window of a second holds one launch more or less: {work.kernel_us / 1e4:.1f} points"
        )
    if work.processes > 1:
        said.append(
            f"{switch_us:g} us a switch between processes, a part of which the shim charges: about "
            f"{quota * switch_us / slice_us:.1f} points where slices last {slice_us / 1000:g} ms"
        )
    return "; ".join(said)


def _switches(setting: Setting) -> str:
    """The same of what elastic tenants use together."""
    if setting.arena.machine is None or not setting.arena.simulate:
        return ""
    costs = load_profile(setting.arena.simulate.partition(",")[0]).figures
    switch_us, slice_us = (costs[f"estimates.{n}_us"] for n in ("context_switch", "time_slice"))
    percent = 100 * switch_us / (slice_us + switch_us)
    return f"switches of {switch_us:g} us between slices of {slice_us / 1000:g} ms: {percent:.1f} %"


def measure_tenants(
    mode: str, granted: list[float], works: list[Work], setting: Setting
) -> Outcome:
    """Several tenants of `penstock run` side by side, each with its own work."""
    arena = setting.arena
    tenants = {}
    for number, (cores, work) in enumerate(zip(granted, works, strict=True)):
        name = f"t{number}-{arena.fresh_number()}"
        tenants[name] = (work, partial(arena.shimmed, name=name, cores=cores, mode=mode,
                                       memory="2Gi"))  # fmt: skip
    with Load(setting, tenants) as load:
        begin_ns = time.monotonic_ns() + round(1.5 * WARM_UP_S * 1e9)
        sleep_until(begin_ns, load)
        end_ns = begin_ns + setting.few(4_000_000_000, 1_200_000_000)
        sleep_until(end_ns, load)
        busy = load.finish()
    got = [busy[name].percent(begin_ns, end_ns) for name in tenants]
    total = sum(got)
    part = 1.0 if mode == "strict" else total / sum(granted)
    off = [abs(have - part * cores) for have, cores in zip(got, granted, strict=True)]
    worst = max(off)
    elastic = mode == "elastic"
    longest_us = max(work.kernel_us for work in works)
    most = 1 + max(0.0, (longest_us - SHORT_US) / PERIOD_US)
    short = elastic and total < ELASTIC_PERCENT
    outcome = Outcome(
        f"got {' + '.join(f'{have:.1f}' for have in got)}: worst {worst:.2f} points off, "
        f"{total:.1f} % in all",
        figures={"worst_error_points": worst, "total_percent": total},
        aim=f"each within {most:.3g} point{'s' if most > 1 else ''}"
        + (f", {ELASTIC_PERCENT} % in all" if elastic else ""),
        reached=worst <= most and not short,
    )
    if short:
        return with_reason(outcome, _switches(setting))
    said = [known_reason(granted[off.index(worst)], works[off.index(worst)], setting)]
    if longest_us > LONG_US:
        said.append(
            "when contended, with no agent to give time slices, launches that outlast the device's "
            "slices have no measure of their own (docs/decisions, 11)"
        )
    return with_reason(outcome, "; ".join(filter(None, said)))


def _against_nvml(setting: Setting) -> Outcome:
    """Both watch a program at half of the device: the ruler is held against another one."""
    seconds = setting.few(4, 2)
    with contextlib.closing(setting.arena.tenant(50)) as tenant:
        start = partial(setting.arena.inside, tenant)
        with Load(setting, {tenant.name: (Work(kernel_us=200), start)}) as load:
            time.sleep(WARM_UP_S)
            begin_ns = time.monotonic_ns()
            if load.recorder:
                load.recorder.look()
            seen = setting.native(setting.own_script("nvml_use.py", seconds))
            sleep_until(time.monotonic_ns(), load)
            end_ns = time.monotonic_ns()
            traced = load.finish()[tenant.name].percent(begin_ns, end_ns)
    apart = abs(traced - seen["percent"])
    return Outcome(
        f"trace {traced:.1f} %, NVML {seen['percent']:.1f} % ({seen['samples']} samples, "
        f"{seen['period_ms']:.0f} ms apart)",
        figures={"traced_percent": traced, "nvml_percent": seen["percent"],
                 "profile.sample_period_ms": seen["period_ms"]},
        aim="within 5 points (NVML tells whole percents of few samples)",
        reached=apart <= 5,
        details=seen,
    )  # fmt: skip
