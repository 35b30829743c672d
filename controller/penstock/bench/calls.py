"""Benchmark of the driver calls that the shim adds, as counted by the simulated device.

A program itself makes one call per launch and some calls at its start. These are measured without
the shim and subtracted for the same number of launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

CORES = 50.0
WORKLOADS: dict[str, tuple[int, list[str]]] = {  # name: processes, the launcher's arguments
    "1 stream, 20 us": (1, ["--kernel-us", "20"]),
    "32 streams, 200 us": (1, ["--kernel-us", "200", "--streams", "32"]),
    "launch and wait, 50 us": (1, ["--kernel-us", "50", "--sync-every", "1"]),
    "4 processes, 8 streams, 100 us": (4, ["--kernel-us", "100", "--streams", "8"]),
}


@dataclass(frozen=True)
class CallsRow:
    """One workload under half of the device."""

    workload: str
    launches_per_s: float
    added_calls_per_s: float  # on the whole device


def run(
    *,
    simulate: str = "h200",
    seconds: float = 3,
    progress: Callable[[int, int], None] | None = None,
) -> list[CallsRow]:
    """Measure every workload.

    Raises:
        StageError: a program failed.
    """
    rows = []
    for name, (processes, arguments) in WORKLOADS.items():
        rows.append(_measure(simulate, name, processes, arguments, seconds))
        if progress:
            progress(len(rows), len(WORKLOADS))
    return rows


def _measure(
    simulate: str, name: str, processes: int, arguments: list[str], seconds: float
) -> CallsRow:
    with Stage(simulate) as stage:
        # Subtract a launch and its wait, if any; the rest is the same for any number of launches.
        waits = 2 if "--sync-every" in arguments else 1
        stage.finish(stage.start(None, [*arguments, "--launches", "1", "--seconds", "9"]))
        fixed = _calls(stage, "bare") - waits
        tenant = stage.tenant("bench", CORES)
        words = [*arguments, "--seconds", str(seconds)]
        programs = [stage.start(tenant, words) for _ in range(processes)]
        launches = sum(int(stage.finish(program)["launches"]) for program in programs)
        added = _calls(stage, tenant.name) - waits * launches - processes * fixed
    return CallsRow(name, round(launches / seconds, 1), round(added / seconds, 1))


def _calls(stage: Stage, tag: str) -> int:
    return sum(record.calls for record in stage.machine.record(0) if record.tag == tag)
