"""Benchmark of the shim's overhead for single launches on an idle stream, and in decode-like loops.

A launch that directly follows another launch benefits from it, because a marker is pending and a
cost has just been learned. Programs that launch singly, such as an inference server or eager
PyTorch, lack this benefit. Kernels are so short that no launch waits at the gate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.bench.figure import Figure
from penstock.bench.interleaved import Added, in_turn
from penstock.bench.stage import Stage
from penstock_shim import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.bench.interleaved import Timing
    from penstock.bench.stage import StageTenant

GATED = 50.0  # percent, for single launches
GATED_BACK_TO_BACK = 99.0  # with a lower quota, back-to-back launches would have to wait
CALLS = {
    0: 20_000,
    40: 4_000,
    200: 1_000,
    1000: 300,
}  # by gap in us: timed launches per round and arm
DECODE_CALLS = 20_000  # a thread
KINDS = 200  # different kernels among a token's launches
THREADS = (1, 4)
# Limits on a launch's added cost: what HAMi-core adds to the same work on a simulated H200.
TARGETS_NS = {
    ("ungated", 0): 53, ("gated", 0): 67,
    ("ungated", 40): 75, ("gated", 40): 81,
    ("ungated", 200): 268, ("gated", 200): 381,
    ("gated", 1000): 591,
}  # fmt: skip
DECODE_NS = {"ungated": 60, "gated": 150}  # the limit for any launch


@dataclass(frozen=True)
class SinglyRow:
    """Launches of one pattern under one arm; values in nanoseconds per launch."""

    pattern: str  # back to back, N us apart, or decode
    arm: str  # ungated | gated
    cores: float  # percent granted
    kinds: int
    threads: int
    native_median_ns: float
    added_median_ns: float
    added_low_ns: float
    added_high_ns: float
    added_mean_ns: float
    target_ns: float | None  # limit; None if there is no target
    rounds: int
    calls: int  # per round, arm and thread
    load: float  # load average of the last minute at the measurement


@dataclass(frozen=True)
class _Pattern:
    name: str
    arguments: tuple[str, ...]
    calls: int
    gated: float = GATED
    kinds: int = 1
    threads: int = 1
    gap_us: int | None = None  # between launches; None for a decode-like loop

    def words(self) -> list[str]:
        """The program's command line."""
        words = [*self.arguments, "--calls", str(self.calls)]
        return [*words, "--kinds", str(self.kinds), "--threads", str(self.threads)]


def _singly(gap_us: int, calls: int) -> _Pattern:
    if not gap_us:
        return _Pattern("back to back", (), calls, gated=GATED_BACK_TO_BACK, gap_us=0)
    return _Pattern(f"{gap_us} us apart", ("--gap-us", str(gap_us)), calls, gap_us=gap_us)


def _decode(threads: int, calls: int) -> _Pattern:
    """Tokens of `KINDS` launches on the default stream, each followed by a wait and a pause."""
    return _Pattern(
        "decode",
        ("--default-stream", "--pause-us", "300", "--kernel-us", "0.5"),
        calls,
        gated=GATED_BACK_TO_BACK,
        kinds=KINDS,
        threads=threads,
    )


def run(
    *,
    simulate: str = "h200",
    rounds: int = 7,
    calls: dict[int, int] | None = None,
    decode_calls: int = DECODE_CALLS,
    progress: Callable[[int, int], None] | None = None,
) -> list[SinglyRow]:
    """Measure all patterns, ungated and gated.

    Args:
        simulate: profile of the simulated device.
        rounds: how often each arm runs.
        calls: timed launches by gap in microseconds; a gap of 0 means back to back.
        decode_calls: timed launches of a decode-like loop, per thread.
        progress: called with (patterns done, patterns).

    Raises:
        StageError: a program failed.
    """
    patterns = [_singly(gap, many) for gap, many in (calls or CALLS).items()]
    patterns += [_decode(threads, decode_calls) for threads in THREADS]
    rows: list[SinglyRow] = []
    with Stage(simulate) as stage:
        # Use separate tenants, so that an arm does not use costs that another arm learned.
        made: dict[float, StageTenant] = {
            cores: stage.tenant(f"cores-{cores:g}", cores)
            for cores in (100.0, GATED, GATED_BACK_TO_BACK)
        }
        for done, pattern in enumerate(patterns):
            rows += _measure(stage, pattern, made, rounds)
            if progress:
                progress(done + 1, len(patterns))
    return rows


def _measure(
    stage: Stage, pattern: _Pattern, made: dict[float, StageTenant], rounds: int
) -> list[SinglyRow]:
    cores = {"ungated": 100.0, "gated": pattern.gated}
    arms = {"none": partial(_timed, stage, None, pattern)}
    arms |= {arm: partial(_timed, stage, made[cores[arm]], pattern) for arm in cores}
    seen, load = in_turn(arms, rounds)
    return [
        SinglyRow(
            pattern=pattern.name,
            arm=arm,
            cores=cores[arm],
            kinds=pattern.kinds,
            threads=pattern.threads,
            **asdict(Added.of(seen["none"], seen[arm])),
            target_ns=DECODE_NS[arm]
            if pattern.gap_us is None
            else TARGETS_NS.get((arm, pattern.gap_us)),
            rounds=rounds,
            calls=pattern.calls,
            load=load,
        )
        for arm in cores
    ]


def _timed(stage: Stage, tenant: StageTenant | None, pattern: _Pattern) -> Timing:
    program = str(paths.workload_path("penstock-launches"))
    told: Timing = stage.finish(stage.start(tenant, pattern.words(), program=program))["launch"]
    return told


def _name(row: SinglyRow) -> str:
    if row.kinds == 1:
        return row.pattern
    threads = "one thread" if row.threads == 1 else f"{row.threads} threads"
    return f"of a decode-like loop, {row.kinds} kinds on stream 0, {threads}"


def figures(rows: Sequence[SinglyRow]) -> list[Figure]:
    """One row of the results table for each pattern and arm that has a target."""
    return [
        Figure(
            f"launch {_name(row)}, {row.arm} ({row.cores:g} %): added median",
            f"<= {row.target_ns:g} ns" + (" (HAMi-core's)" if row.kinds == 1 else ""),
            f"{row.added_median_ns:.0f} ns ({row.added_low_ns:.0f} to {row.added_high_ns:.0f})",
            f"{row.rounds} rounds of {row.calls}, load {row.load:g}",
            row.added_median_ns <= row.target_ns,
        )
        for row in rows
        if row.target_ns is not None
    ]
