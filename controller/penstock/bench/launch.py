"""Benchmark of the shim's overhead per launch and allocation, against runs without the shim.

One round runs the same binary in three ways: without the shim, with the shim and all cores (the
gate is open and only counts), and with the shim and 99 % of cores (the gate decides on every
launch, but the load is so light that no launch waits). The difference is taken within a round, so
that a slow minute of the machine affects all three. The result is the median over rounds, with the
quartiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock.bench.interleaved import Added
from penstock.bench.scratch import scratch_folder
from penstock.bench.stage import StageError
from penstock.devices import open_devices
from penstock_shim import paths, simulator

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = ("launch", "allocate", "free", "refuse")
ARMS = {"ungated": "100", "gated": "99"}  # name → cores granted, percent
KERNELS = "penstock_tiny=1us"


@dataclass(frozen=True)
class LaunchRow:
    """One driver call under one arm; all values in nanoseconds per call."""

    call: str  # launch | allocate | free | refuse
    arm: str  # ungated | gated
    native_median_ns: float  # without the shim
    added_median_ns: float  # median over rounds of the difference of medians
    added_low_ns: float  # lower quartile over rounds
    added_high_ns: float  # upper quartile over rounds
    added_mean_ns: float  # median over rounds of the difference of means
    rounds: int
    calls: int  # per round and arm


def _measure(command: list[str], environment: dict[str, str]) -> dict[str, dict[str, float]]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StageError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}"
        )
    figures: dict[str, dict[str, float]] = json.loads(done.stdout)
    return figures


def _commands(simulate: str | None, calls: int) -> dict[str, list[str]]:
    """The command line of each arm; `none` is the baseline."""
    penstock = [sys.executable, "-m", "penstock"]
    program = [str(paths.workload_path("penstock-latency")), str(calls)]
    device = ["--simulate", simulate] if simulate else []
    commands = {"none": [*penstock, "simulate", simulate, "--", *program] if simulate else program}
    for arm, cores in ARMS.items():
        limits = ["--memory", "1Gi", "--cores", cores, "--quiet", "--name", f"bench-{arm}"]
        commands[arm] = [*penstock, "run", *limits, *device, "--", *program]
    return commands


def run(
    *,
    simulate: str | None = "h200",
    rounds: int = 11,
    calls: int = 20_000,
    progress: Callable[[int, int], None] | None = None,
) -> list[LaunchRow]:
    """Measure all arms in one run.

    Args:
        simulate: profile of the simulated device; None for the real device 0.
        rounds: how often each arm runs.
        calls: timed calls of each kind, per round and arm.
        progress: called with (rounds done, rounds).

    Raises:
        StageError: a workload failed.
        PenstockError, ProfileError: there is no such device.
    """
    if simulate is None:
        open_devices()
    else:
        simulator.parse_spec(simulate)
    seen: dict[str, list[dict[str, dict[str, float]]]] = {arm: [] for arm in ("none", *ARMS)}
    with scratch_folder("bench") as folder:
        # A separate state directory ensures that the device has no other tenant.
        environment = {
            **os.environ,
            "PENSTOCK_STATE_DIR": str(folder / "state"),
            "PENSTOCK_SIM_KERNELS": KERNELS,
        }
        for done in range(rounds):
            for arm, command in _commands(simulate, calls).items():
                seen[arm].append(_measure(command, environment))
            if progress:
                progress(done + 1, rounds)
    return [_row(call, arm, seen["none"], seen[arm], calls) for call in CALLS for arm in ARMS]


def _row(
    call: str,
    arm: str,
    native: list[dict[str, dict[str, float]]],
    shimmed: list[dict[str, dict[str, float]]],
    calls: int,
) -> LaunchRow:
    return LaunchRow(
        call=call,
        arm=arm,
        **asdict(Added.of([one[call] for one in native], [one[call] for one in shimmed])),
        rounds=len(native),
        calls=calls,
    )
