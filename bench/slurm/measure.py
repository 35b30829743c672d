"""One round of the comparison with Slurm: two programs run, an urgent one comes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.slurm.programs import GIB, Program

from penstock_shim import simulator

if TYPE_CHECKING:
    from pathlib import Path

    from bench.slurm.cluster import Slurm

    from penstock_shim.simulator import Machine

RULES = "*spin=param0"
RUNNING_WITHIN_S = 60
WATCHED_S = 1.0


@dataclass(frozen=True)
class Mix:
    """How much device memory the programs hold."""

    held_gib: int  # by each of the two less urgent ones
    urgent_gib: int


@dataclass(frozen=True)
class Round:
    """What was measured when an urgent program came."""

    scheduler: str
    urgent_ms: float | None  # from its submission to the end of its first kernel; None: it failed
    failure: str
    held_gib: float  # device memory of the suspended, a second later
    stopped_ms: float  # from the submission to the last sign of work of the suspended


def slurm_round(slurm: Slurm, folder: Path, machine: Machine, mix: Mix, way: str) -> Round:
    """Slurm's round; `way` is "sbatch" or "srun".

    Raises:
        SystemExit: the less urgent programs do not run.
    """
    lower = [Program(folder, f"low{n}", mix.held_gib * GIB) for n in (1, 2)]
    jobs = [slurm.submit("low", 1, _script(one, machine)) for one in lower]
    for one in lower:
        if one.await_first_launch(RUNNING_WITHIN_S) is None:
            raise SystemExit(f"{one.name} does not run under Slurm: {one.failure()}")
    urgent = Program(folder, "urgent", mix.urgent_gib * GIB)
    script = _script(urgent, machine)
    time.sleep(WATCHED_S)
    submitted_ns = time.monotonic_ns()
    with slurm.submitted(way, "urgent", 2, script) as job:
        told = urgent.await_first_launch()
        time.sleep(WATCHED_S)
        held = held_bytes(machine, [one.name for one in lower])
        latest_ns = max(one.progress().latest_ns for one in lower)
        slurm.end(job)
    for job in jobs:
        slurm.end(job)
    return Round(
        f"Slurm, {way}",
        (told.first_ns - submitted_ns) / 1e6 if told else None,
        "" if told else urgent.failure() or "no first launch",
        held / GIB,
        (latest_ns - submitted_ns) / 1e6,
    )


def _script(program: Program, machine: Machine) -> Path:
    variables = simulator.environment(machine.path, program.name, base={})
    return program.script({**variables, "PENSTOCK_SIM_KERNELS": RULES})


def held_bytes(machine: Machine, tags: list[str]) -> int:
    """Device memory of the programs with these tags, by the device's own record."""
    return sum(one.memory_bytes for one in machine.record(0) if one.alive and one.tag in tags)
