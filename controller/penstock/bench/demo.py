"""Demo that runs three unmodified programs on one device under quotas and checks their usage.

The reference is the simulated GPU's own record of busy time and memory, or NVML's values per
process on a real GPU. The shim's own counters are not used for the verdict.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.scratch import scratch_folder
from penstock.devices import Device, DeviceBackend, DeviceProcess, open_devices
from penstock.model import PenstockError, format_cores, format_memory
from penstock.node.supervision.tenant_report import Reporter, Row
from penstock.node.tenants.simulated_machines import simulated_machine
from penstock.node.tenants.state import State
from penstock.node.tenants.tenant import tenants_of

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 0.25
SETTLING_S = 2.0  # between the last program's first kernel and the measured window
REAL_GPU_POINTS = 10.0  # NVML samples utilisation in whole percents, several times a second
SIMULATED_POINTS = 3.0
END_GRACE_S = 60.0


@dataclass(frozen=True)
class Part:
    """One program of the demo and its quota."""

    name: str
    memory_bytes: int
    cores_permille: int
    backlogged: bool  # it always has work queued, so it should get its whole share
    over_asks: bool  # it tries to allocate more than its quota


PARTS = (
    Part("numba", 8 << 30, 700, backlogged=True, over_asks=False),
    Part("cuda-core", 4 << 30, 200, backlogged=True, over_asks=False),
    Part("c-program", 2 << 30, 50, backlogged=False, over_asks=True),
)


@dataclass
class Seen:
    """Samples of one program's usage, as reported by the device."""

    busy: list[tuple[int, int]] = field(default_factory=list)  # at_ns, busy_ns so far
    permille: list[tuple[int, int]] = field(default_factory=list)  # if only this is known
    peak_bytes: int = 0


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    part: Part
    exit_code: int
    output: str
    refusals: int


@dataclass(frozen=True)
class Outcome:
    """A program's usage of the device, and its faults."""

    ended: Ended
    peak_bytes: int
    cores_percent: float | None
    faults: tuple[str, ...]


@dataclass(frozen=True)
class DemoReport:
    """Result of the demo. `window_s` is the time over which cores were measured."""

    device: Device
    window_s: float
    tolerance_points: float
    outcomes: tuple[Outcome, ...]

    @property
    def within_bounds(self) -> bool:
        """Whether no program was at fault."""
        return not any(outcome.faults for outcome in self.outcomes)


def run(
    *,
    seconds: float = 25.0,
    simulate: str | None = None,
    watch: Callable[[list[Row]], None] | None = None,
) -> DemoReport:
    """Runs the demo on the real GPU if there is one, else (or on request) on a simulated one.

    Args:
        seconds: how long the programs run.
        simulate: profile of the simulated device; None for the real device, or without a driver a
            simulated H200.
        watch: called a few times a second with the rows of a live table.

    Raises:
        PenstockError: a dependency is missing (compiler, Numba-CUDA, cuda.core).
    """
    if simulate is None and not _has_real_device():
        simulate = "h200"
    with scratch_folder("demo") as folder:
        state = State.open(folder / "state")
        commands = _commands(folder, seconds)
        logs = {part.name: folder / f"{part.name}.log" for part in PARTS}
        seen = {part.name: Seen() for part in PARTS}
        programs: dict[str, subprocess.Popen[str]] = {}
        try:
            for part in PARTS:
                command = [*_run_command(part, state, simulate), *commands[part.name]]
                programs[part.name] = _start(command, logs[part.name])
            source = _devices(state, simulate, programs)
            device = source.devices()[0]
            sampler = Sampler(source, Reporter(state), seen)
            _watch(programs, sampler, watch, time.monotonic() + seconds + END_GRACE_S)
        finally:
            for program in programs.values():
                if program.poll() is None:
                    program.terminate()
                program.wait()
        ended = [
            Ended(
                part,
                programs[part.name].returncode,
                logs[part.name].read_text(),
                sampler.refusals.get(part.name, 0),
            )
            for part in PARTS
        ]
    window = _window(seen)
    tolerance = SIMULATED_POINTS if device.simulated else REAL_GPU_POINTS
    outcomes = tuple(_judge(one, seen[one.part.name], window, tolerance) for one in ended)
    return DemoReport(device, (window[1] - window[0]) / 1e9, tolerance, outcomes)


def _has_real_device() -> bool:
    try:
        open_devices()
    except PenstockError:
        return False
    return True


def _devices(
    state: State, simulate: str | None, programs: dict[str, subprocess.Popen[str]]
) -> DeviceBackend:
    """The programs' devices. The first program creates the simulated machine."""
    if simulate is None:
        return open_devices()
    while not tenants_of(state) and any(program.poll() is None for program in programs.values()):
        time.sleep(0.02)
    return simulated_machine(state, simulate)


def _commands(folder: Path, seconds: float) -> dict[str, list[str]]:
    examples = _examples()
    for module, package in (("numba.cuda", "numba-cuda[cu13]"), ("cuda.core", "cuda-core[cu13]")):
        probe = [sys.executable, "-c", f"import {module}"]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            raise PenstockError(
                f"the demo needs {module}", "it cannot be imported", f"pip install '{package}'"
            )
    program = folder / "c_tenant"
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        raise PenstockError("the demo needs a C compiler", "none is installed", "install gcc")
    source = examples / "c_tenant.c"
    built = subprocess.run(
        [compiler, "-o", str(program), str(source), "-ldl"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode:
        raise PenstockError(f"{source} does not compile", built.stderr.strip())
    return {
        "numba": [sys.executable, str(examples / "numba_tenant.py"), str(seconds)],
        "cuda-core": [sys.executable, str(examples / "cuda_core_tenant.py"), str(seconds)],
        "c-program": [str(program), str(seconds)],
    }


def _examples() -> Path:
    """Directory of the example programs, in the current checkout or else in the installation."""
    from penstock_shim import paths

    here = Path("examples")
    return here if (here / "numba_tenant.py").exists() else paths.examples_dir()


def _run_command(part: Part, state: State, simulate: str | None) -> list[str]:
    return [
        *(sys.executable, "-m", "penstock", "run", "-q", f"--name={part.name}"),
        f"--state-dir={state.directory}",
        f"--memory={format_memory(part.memory_bytes)}",
        f"--cores={format_cores(part.cores_permille)}",
        f"--simulate={simulate}" if simulate else "--device=0",
        "--",
    ]


def _start(command: list[str], log: Path) -> subprocess.Popen[str]:
    with log.open("w") as stream:
        return subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )


class Sampler:
    """Samples the programs' usage from the device, and their refusals from the shim."""

    def __init__(self, source: DeviceBackend, reporter: Reporter, seen: dict[str, Seen]) -> None:
        self.refusals: dict[str, int] = {}
        self._source = source
        self._device = source.devices()[0]
        self._reporter = reporter
        self._seen = seen

    def take(self) -> list[Row]:
        """One sample; returns the rows for a table."""
        rows = self._reporter.rows()
        owners = {pid: row.tenant for row in rows for pid in row.members or ()}
        for name, own in _by_program(self._source.processes(self._device), owners).items():
            if name in self._seen:
                _sample(self._seen[name], own)
        self.refusals |= {row.tenant: row.refusals for row in rows if row.refusals is not None}
        return rows


def _watch(
    programs: dict[str, subprocess.Popen[str]],
    sampler: Sampler,
    watch: Callable[[list[Row]], None] | None,
    give_up: float,
) -> None:
    """Samples until all programs have ended. Raises `PenstockError` at the time `give_up`."""
    while any(program.poll() is None for program in programs.values()):
        rows = sampler.take()
        if watch:
            watch(rows)
        if time.monotonic() > give_up:
            raise PenstockError(
                "the demo's programs did not end",
                "one of them hangs",
                "run one alone: penstock simulate h200 -- python examples/numba_tenant.py 5",
            )
        time.sleep(TICK_S)


def _by_program(
    processes: list[DeviceProcess], owners: dict[int, str]
) -> dict[str, list[DeviceProcess]]:
    found: dict[str, list[DeviceProcess]] = {}
    for process in processes:
        name = process.tag or owners.get(process.pid)
        if name:
            found.setdefault(name, []).append(process)
    return found


def _sample(seen: Seen, processes: list[DeviceProcess]) -> None:
    now = sum(process.memory_bytes or 0 for process in processes if process.alive)
    peaks = [process.peak_memory_bytes or 0 for process in processes]
    seen.peak_bytes = max(seen.peak_bytes, now, *peaks)
    at_ns = processes[0].at_ns
    if all(process.busy_ns is not None for process in processes):
        seen.busy.append((at_ns, sum(process.busy_ns or 0 for process in processes)))
    elif any(process.busy_permille is not None for process in processes):
        seen.permille.append((at_ns, sum(process.busy_permille or 0 for process in processes)))


def _window(seen: dict[str, Seen]) -> tuple[int, int]:
    """The interval from when all backlogged programs have settled until the first program ends."""
    begins, ends = [], []
    for part in PARTS:
        if not part.backlogged:
            continue
        figures = seen[part.name]
        working = [
            after[0]
            for before, after in zip(figures.busy, figures.busy[1:], strict=False)
            if after[1] > before[1]
        ] or [at_ns for at_ns, permille in figures.permille if permille]
        if len(working) < 2:
            return 0, 0
        begins.append(working[0] + int(SETTLING_S * 1e9))
        ends.append(working[-1] - int(2 * TICK_S * 1e9))
    begin, end = max(begins), min(ends)
    return begin, max(begin, end)


def _cores_percent(seen: Seen, window: tuple[int, int]) -> float | None:
    """Share of the device's time within the window, according to the device's samples."""
    inside = [(at, busy) for at, busy in seen.busy if window[0] <= at <= window[1]]
    if len(inside) >= 2:
        (first, busy_first), (last, busy_last) = inside[0], inside[-1]
        return 100 * (busy_last - busy_first) / (last - first)
    shares = [permille / 10 for at, permille in seen.permille if window[0] <= at <= window[1]]
    return statistics.fmean(shares) if shares else None


def _judge(ended: Ended, seen: Seen, window: tuple[int, int], tolerance: float) -> Outcome:
    part, refusals = ended.part, ended.refusals
    faults = []
    if ended.exit_code:
        faults.append(f"exit code {ended.exit_code}")
    if seen.peak_bytes > part.memory_bytes:
        faults.append(f"memory {seen.peak_bytes - part.memory_bytes} bytes above its quota")
    if not seen.peak_bytes:
        faults.append("never seen by the device")
    cores, quota = _cores_percent(seen, window), part.cores_permille / 10
    if cores is None or window[1] - window[0] < 5e9:
        faults.append("did not work long enough to be judged")
    elif cores > quota + tolerance:
        faults.append(f"cores {cores - quota:.1f} points above its quota")
    elif part.backlogged and cores < quota - tolerance:
        faults.append(f"cores {quota - cores:.1f} points below its quota")
    if part.over_asks and ("CUDA_ERROR_OUT_OF_MEMORY" not in ended.output or not refusals):
        faults.append("was not refused memory")
    if not part.over_asks and refusals:
        faults.append(f"{refusals} allocations within its quota were refused")
    return Outcome(ended, seen.peak_bytes, cores, tuple(faults))
