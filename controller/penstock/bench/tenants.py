"""Benchmark of shares: several `penstock run` tenants on one device, supervisors included.

Tenants are set up as a user would do it. Each tenant runs one backlogged program; the reference is
the simulated device's own record.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.bench.quota import Workload
from penstock.bench.scratch import scratch_folder
from penstock.bench.stage import KERNEL_RULES, LAUNCHER, Sample, StageError, windows
from penstock.node.tenants.simulated_machines import simulated_machine
from penstock.node.tenants.state import State
from penstock_shim import paths
from penstock_shim.simulator import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.model.terms import Mode

# Percent of the device. Context switches, every 2 ms on a simulated device, take the rest.
SHARES: dict[int, tuple[int, ...]] = {
    2: (60, 35),
    4: (35, 30, 20, 10),
    8: (25, 20, 15, 10, 10, 5, 5, 5),
}
KERNEL_US = 500.0
WARM_UP_S = 3.0
START_S = 60.0
STEP_S = 0.05


@dataclass(frozen=True)
class TenantsRow:
    """All tenants of one device. Errors are in points: percent of the device's time."""

    tenants: int
    mode: Literal["strict", "elastic"]
    shares: str  # granted, percent
    due: str  # share due to each tenant: its grant, or in elastic mode its part of the total
    got: str
    worst_error_points: float  # of a tenant, over the whole measurement
    worst_window_points: float  # 95 % of the tenants' 1 s windows are closer than this
    total_percent: float


def run(
    *,
    simulate: str = "h200",
    counts: Sequence[int] = tuple(SHARES),
    modes: Sequence[Mode] = ("strict", "elastic"),
    seconds: float = 5,
    progress: Callable[[int, int], None] | None = None,
) -> list[TenantsRow]:
    """Measure every number of tenants in every mode.

    In elastic mode half of the device is granted, and all of it should be used.

    Raises:
        StageError: a tenant's program failed.
    """
    rows = []
    for mode in modes:
        for count in counts:
            rows.append(_measure(simulate, count, mode, seconds))
            if progress:
                progress(len(rows), len(modes) * len(counts))
    return rows


def _measure(simulate: str, count: int, mode: Mode, seconds: float) -> TenantsRow:
    shares = {f"t{i}": float(share) for i, share in enumerate(SHARES[count])}
    granted = shares if mode == "strict" else {name: s / 2 for name, s in shares.items()}
    with scratch_folder("bench") as folder:
        state = State.open(folder / "state")
        with _programs(state, simulate, granted, mode) as programs:
            machine = _machine(state, simulate, programs, granted)
            samples = _watch(machine, programs, seconds)
    whole = samples[-1].at_ns - samples[0].at_ns
    got = {
        name: 100 * (samples[-1].busy_ns[name] - samples[0].busy_ns[name]) / whole
        for name in shares
    }
    total = sum(got.values())
    part = 1 if mode == "strict" else total / sum(shares.values())
    due = {name: part * share for name, share in shares.items()}
    errors = [abs(window.percent - due[name]) for name in due for window in windows(samples, name)]
    return TenantsRow(
        tenants=count,
        mode=mode,
        shares=" ".join(f"{share:g}" for share in granted.values()),
        due=" ".join(f"{share:.1f}" for share in due.values()),
        got=" ".join(f"{share:.1f}" for share in got.values()),
        worst_error_points=max(abs(got[name] - due[name]) for name in due),
        worst_window_points=statistics.quantiles(errors, n=20)[-1],
        total_percent=total,
    )


@contextlib.contextmanager
def _programs(
    state: State, simulate: str, granted: dict[str, float], mode: Mode
) -> Iterator[list[subprocess.Popen[bytes]]]:
    programs = []
    try:
        for name, share in granted.items():
            command = [
                *(sys.executable, "-m", "penstock", "run", "-q", f"--name={name}"),
                f"--state-dir={state.directory}",
                *("--memory=1Gi", f"--cores={share:g}", f"--mode={mode}"),
                *(f"--simulate={simulate}", "--", str(paths.workload_path(LAUNCHER))),
                *Workload(kernel_us=KERNEL_US).arguments(3600),
            ]
            programs.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, "PENSTOCK_SIM_KERNELS": KERNEL_RULES},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            )
        yield programs
    finally:
        for program in programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGTERM)
        for program in programs:
            program.communicate()


def _machine(
    state: State,
    simulate: str,
    programs: Sequence[subprocess.Popen[bytes]],
    granted: dict[str, float],
) -> Machine:
    """The tenants' machine, once all of them have used it."""
    give_up = time.monotonic() + START_S
    while True:
        _check(programs)
        files = [path for path in state.machines.glob("*") if path.is_file()]
        if files:
            source = simulated_machine(state, simulate)
            machine = Machine(source.machine or files[0])
            if all(_sample(machine).busy_ns.get(name) for name in granted):
                return machine
            machine.close()
        if time.monotonic() > give_up:
            raise StageError(f"not all tenants worked within {START_S:g} s")
        time.sleep(0.05)


def _watch(
    machine: Machine, programs: Sequence[subprocess.Popen[bytes]], seconds: float
) -> list[Sample]:
    with machine:
        time.sleep(WARM_UP_S)
        samples = [_sample(machine)]
        while samples[-1].at_ns - samples[0].at_ns < seconds * 1e9:
            time.sleep(STEP_S)
            samples.append(_sample(machine))
    _check(programs)
    return samples


def _sample(machine: Machine) -> Sample:
    busy: dict[str, int] = {}
    at_ns = 0
    for record in machine.record(0):
        busy[record.tag] = busy.get(record.tag, 0) + record.busy_ns
        at_ns = record.at_ns
    return Sample(at_ns, busy)


def _check(programs: Sequence[subprocess.Popen[bytes]]) -> None:
    for program in programs:
        if program.poll() is not None:
            _, errors = program.communicate()
            words = errors.decode(errors="replace").strip()
            raise StageError(f"a tenant ended with {program.returncode}: {words}")
