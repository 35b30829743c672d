"""Benchmark of the memory limit with racing processes, and of charges left after a kill.

Processes of one tenant constantly request more than the limit. The memory that they hold is read
from the ledger's own peak, which misses no higher total, and from the device's record.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.stage import Stage, StageError
from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.stage import StageTenant

LIMIT_BYTES = 8 << 30
MOST_BYTES = 1 << 30  # of one allocation
GONE_S = 10.0


@dataclass(frozen=True)
class MemoryRow:
    """Result for the racing processes of one tenant, in bytes."""

    processes: int
    limit_bytes: int
    peak_ledger_bytes: int  # highest total ever charged
    peak_device_bytes: int  # highest in samples of the device's record, without contexts
    granted: int
    refused: int
    kills: int
    left_bytes: int  # still charged after all processes were killed
    worst_return_ms: float  # from the last kill of a round until the charge was exactly zero


def run(
    *,
    simulate: str = "h200",
    processes: int = 8,
    seconds: float = 5,
    rounds: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> list[MemoryRow]:
    """Run the race for `seconds`, then `rounds` more times with all processes killed.

    Raises:
        StageError: a program failed.
    """
    with Stage(simulate) as stage:
        tenant = stage.tenant("bench", 100, memory_bytes=LIMIT_BYTES)
        granted, refused, peak_device = _race(stage, tenant, processes, seconds)
        left, worst_ms = 0, 0.0
        for done in range(rounds):
            left_now, took_ms = _kill_all(stage, tenant, processes, seed=done)
            left, worst_ms = left + left_now, max(worst_ms, took_ms)
            if progress:
                progress(done + 1, rounds)
        peak = tenant.usage.snapshot().devices[0].peak_bytes
    return [
        MemoryRow(
            processes=processes,
            limit_bytes=LIMIT_BYTES,
            peak_ledger_bytes=peak,
            peak_device_bytes=peak_device,
            granted=granted,
            refused=refused,
            kills=rounds * processes,
            left_bytes=left,
            worst_return_ms=round(worst_ms, 3),
        )
    ]


def _arguments(seconds: float, seed: int) -> list[str]:
    return [str(seconds), str(MOST_BYTES), str(seed)]


def _race(
    stage: Stage, tenant: StageTenant, processes: int, seconds: float
) -> tuple[int, int, int]:
    """Returns (granted, refused, peak bytes on the device as sampled)."""
    program = str(paths.workload_path("penstock-churn"))
    context_bytes = stage.machine.devices()[0].context_bytes
    children = [
        stage.start(tenant, _arguments(seconds, seed), program=program)
        for seed in range(1, processes + 1)
    ]
    peak = 0
    while any(child.poll() is None for child in children):
        records = [r for r in stage.machine.record(0) if r.tag == tenant.name and r.alive]
        held = [max(0, record.memory_bytes - context_bytes) for record in records]
        peak = max(peak, sum(held))
    reports = [stage.finish(child) for child in children]
    return sum(r["granted"] for r in reports), sum(r["refused"] for r in reports), peak


def _kill_all(stage: Stage, tenant: StageTenant, processes: int, *, seed: int) -> tuple[int, float]:
    """Kill racing processes at random moments; returns (bytes still charged, ms until zero)."""
    program = str(paths.workload_path("penstock-churn"))
    chance = random.Random(seed)  # noqa: S311 - moments of kills, not secrets
    children = [
        stage.start(tenant, _arguments(3600, 1000 * seed + number), program=program)
        for number in range(processes)
    ]
    give_up = time.monotonic() + GONE_S
    while tenant.usage.snapshot().devices[0].total_bytes < LIMIT_BYTES // 2:
        if time.monotonic() > give_up:
            raise StageError("the racing processes did not get to half of the limit")
    for child in children:
        with contextlib.suppress(InterruptedError):
            time.sleep(chance.random() * 0.02)
        stage.kill(child)
    began = time.monotonic_ns()
    while True:
        tenant.usage.reap()
        left = tenant.usage.snapshot().devices[0].total_bytes
        took_ns = time.monotonic_ns() - began
        if not left or took_ns > GONE_S * 1e9:
            return left, took_ns / 1e6
