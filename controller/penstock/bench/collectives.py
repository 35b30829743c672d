"""Benchmark of synchronised work under a quota: ranks on several devices, streams on one.

A step consists of five kernels of one millisecond and a kernel that waits for the peers' steps, as
in training on several devices. If gates open at different moments, ranks wait for each other inside
kernels, and that wait is charged to the tenant, which may therefore get far less than its quota,
and less with every step. The target is `LEAST_PERCENT` of the quota's share of full speed.

The target also applies after a rank was held up: a process is stopped (SIGSTOP), or a thread sleeps
between two steps. Meanwhile the peers' kernels wait on their devices at the tenant's charge, so the
measurement starts only when steps end again, and the row includes the time until then.

Each measurement has a time limit. The ranks report their progress in a page that they share.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from penstock.bench.figure import Figure
from penstock.bench.interleaved import load_average
from penstock.bench.stage import Stage, StageError
from penstock_shim import paths

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from penstock.bench.stage import StageTenant

Ranks = Literal["threads", "processes", "streams"]  # streams: of one thread, on one device

QUOTAS = (10, 30, 50, 70, 90, 95)
LEAST_PERCENT = 80.0  # of the quota's share of full speed
OVER_POINTS = 3.0  # how far a device's busy time may exceed the quota
HOLD_UPS_S = (0.03, 1.0)
LONG_HOLD_UP_S = 10.0  # the waiting kernels' time is charged at the quota: 20 s more at 50 %
PATIENCE = 2.5  # a measurement ends after this many times its expected length
WARM_UP = 0.25  # of a measurement
# Steps that must end after a hold-up before the measurement starts. Four steps end before the
# kernels' waiting is charged, because a closed gate still admits 20 ms of work.
RECOVERED_STEPS = 8
RECOVERY_S = 1.0  # at most, plus the time charged for the waiting kernels
START_S = 20.0
FULL_STRETCHES = 3
LINE = struct.Struct("4Q")  # arrived, steps, ended_ns, hold_ns: shim/native/workload/collective.c
LINE_BYTES, PAGE_BYTES = 64, 4096
HOLD_OFFSET = 24
FEWEST_STEPS = 8


@dataclass(frozen=True)
class Cell:
    """One set of ranks under one quota."""

    quota: float  # percent
    devices: int
    ranks: Ranks

    @property
    def count(self) -> int:
        """Number of ranks: one per device, or two streams on one device."""
        return 2 if self.ranks == "streams" else self.devices


def _cells() -> tuple[Cell, ...]:
    """Every quota on two devices with both kinds of ranks, on four and eight with one; streams."""
    ways: tuple[Ranks, Ranks] = ("threads", "processes")
    two = [Cell(quota, 2, ranks) for quota in QUOTAS for ranks in ways]
    more = [
        Cell(quota, devices, ways[(i + k) % 2])
        for k, devices in enumerate((4, 8))
        for i, quota in enumerate(QUOTAS)
    ]
    return (*two, *more, *(Cell(quota, 1, "streams") for quota in QUOTAS))


CELLS = _cells()
LONG_CELLS = (Cell(50, 2, "threads"), Cell(90, 2, "processes"))  # also held up for long


@dataclass(frozen=True)
class CollectiveRow:
    """One set of ranks at one quota, undisturbed or after one rank was held up."""

    devices: int
    ranks: Ranks
    quota: float  # percent
    held_up_ms: float  # of one rank, before the measurement; 0 if none
    recovered_ms: float  # from the end of the hold-up until steps ended again
    full_steps_per_s: float  # without the shim
    steps_per_s: float
    of_quota_percent: float  # steps a second, as a part of the quota's share of full speed
    busiest_percent: float  # the busiest device's time, as a part of the elapsed time
    ended: bool  # whether it ended within `bound_s`
    steps: int  # completed
    wanted_steps: int
    bound_s: float
    load: float


@dataclass(frozen=True)
class _Goal:
    """Target of a measurement."""

    full: float  # steps a second without the shim
    rate: float  # steps a second at the quota, without loss
    steps: int
    bound_s: float

    @classmethod
    def of(cls, cell: Cell, full: float, seconds: float) -> _Goal:
        rate = full * cell.quota / 100
        steps = max(FEWEST_STEPS, round(seconds * rate))
        return cls(full, rate, steps, PATIENCE * steps / rate)


class _Page:
    """The file that the ranks share."""

    def __init__(self, path: Path, count: int) -> None:
        path.write_bytes(bytes(PAGE_BYTES))
        self.path = path
        self.count = count
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), PAGE_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def steps(self) -> int:
        """Number of steps that all ranks have completed."""
        lines = (LINE.unpack_from(self._map, LINE_BYTES * i) for i in range(self.count))
        return min(int(line[1]) for line in lines)

    def hold(self, rank: int, seconds: float) -> None:
        """Makes the rank sleep before its next step."""
        struct.pack_into("Q", self._map, LINE_BYTES * rank + HOLD_OFFSET, round(seconds * 1e9))

    def wait_for(self, steps: int, give_up: float) -> bool:
        """Whether all ranks ended `steps` steps before the time `give_up` (time.monotonic)."""
        while self.steps() < steps:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.001)
        return True


class _Team:
    """Running ranks."""

    def __init__(self, stage: Stage, tenant: StageTenant | None, cell: Cell, page: _Page) -> None:
        self._page = page
        self._stage = stage
        self._alone = cell.ranks == "processes"
        program = str(paths.workload_path("penstock-collective"))
        words = [str(page.path), str(cell.count)]
        words += ["--one-device"] if cell.ranks == "streams" else []
        each = [["--rank", str(i)] for i in range(cell.count)] if self._alone else [[]]
        self._programs: list[subprocess.Popen[str]] = [
            stage.start(tenant, [*words, *own], program=program) for own in each
        ]

    def hold_up(self, seconds: float) -> None:
        """Holds up the last rank for `seconds`; returns when the rank continues."""
        if not self._alone:
            self._page.hold(self._page.count - 1, seconds)
            time.sleep(seconds)
            return
        pid = self._programs[-1].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """Ends all ranks."""
        for program in self._programs:
            self._stage.kill(program)


def run(
    *,
    simulate: str = "h200",
    cells: Sequence[Cell] = CELLS,
    hold_ups_s: Sequence[float] = HOLD_UPS_S,
    long_cells: Sequence[Cell] = LONG_CELLS,
    seconds: float = 1.2,
    progress: Callable[[int, int], None] | None = None,
) -> list[CollectiveRow]:
    """Measure each cell undisturbed and then after each hold-up, unless its ranks have stopped.

    Args:
        simulate: profile of the simulated devices.
        cells: ranks and quotas.
        hold_ups_s: lengths of successive hold-ups of one rank.
        long_cells: the cells with a further hold-up of `LONG_HOLD_UP_S`.
        seconds: length of a measurement at the quota.
        progress: called with (cells done, cells).

    Raises:
        StageError: a program failed.
    """
    full: dict[tuple[int, Ranks], float] = {}
    rows: list[CollectiveRow] = []
    for done, cell in enumerate(cells):
        kind = (cell.devices, cell.ranks)
        if kind not in full:
            full[kind] = _full_speed(simulate, cell, seconds)
        long = (LONG_HOLD_UP_S,) if cell in long_cells else ()
        rows += _measure(simulate, cell, full[kind], (*hold_ups_s, *long), seconds)
        if progress:
            progress(done + 1, len(cells))
    return rows


def _full_speed(simulate: str, cell: Cell, seconds: float) -> float:
    """Steps a second without the shim, in the best of several intervals."""
    with (
        Stage(f"{simulate},{cell.devices}") as stage,
        _Page(stage.directory / "page", cell.count) as page,
    ):
        team = _Team(stage, None, cell, page)
        _begin(stage, page, cell)
        rates = []
        for _ in range(FULL_STRETCHES):
            first, began = page.steps(), time.monotonic()
            time.sleep(seconds / 2)
            rates.append((page.steps() - first) / (time.monotonic() - began))
        team.end()
        return max(rates)


def _begin(stage: Stage, page: _Page, cell: Cell) -> None:
    if not page.wait_for(1, time.monotonic() + START_S):
        stage.check_programs()
        raise StageError(f"{cell.count} ranks ended no step within {START_S:g} s")


def _measure(
    simulate: str, cell: Cell, full: float, hold_ups_s: Sequence[float], seconds: float
) -> list[CollectiveRow]:
    rows = []
    goal = _Goal.of(cell, full, seconds)
    with (
        Stage(f"{simulate},{cell.devices}") as stage,
        _Page(stage.directory / "page", cell.count) as page,
    ):
        team = _Team(stage, stage.tenant("ranks", cell.quota), cell, page)
        _begin(stage, page, cell)
        page.wait_for(page.steps() + round(WARM_UP * goal.steps), time.monotonic() + goal.bound_s)
        # Streams of one thread are held up together, so that neither waits for the other.
        for held_up_s in (0.0, *(() if cell.ranks == "streams" else hold_ups_s)):
            recovered_s = _hold_up(team, page, cell, held_up_s) if held_up_s else 0.0
            row = replace(_phase(stage, page, cell, goal), held_up_ms=1000 * held_up_s,
                          recovered_ms=round(1000 * recovered_s, 1))  # fmt: skip
            rows.append(row)
            if not row.ended:
                break
        team.end()
    return rows


def _hold_up(team: _Team, page: _Page, cell: Cell, seconds: float) -> float:
    """Holds up one rank; returns the seconds from the hold-up's end until steps ended again."""
    team.hold_up(seconds)
    began = time.monotonic()
    most_s = RECOVERY_S + seconds / (cell.quota / 100)
    page.wait_for(page.steps() + RECOVERED_STEPS, began + most_s)
    return time.monotonic() - began


def _phase(stage: Stage, page: _Page, cell: Cell, goal: _Goal) -> CollectiveRow:
    first, before = page.steps(), [stage.sample(i) for i in range(cell.devices)]
    began = time.monotonic()
    ended = page.wait_for(first + goal.steps, began + goal.bound_s)
    took_s, steps = time.monotonic() - began, page.steps() - first
    stage.check_programs()  # if a rank has failed, its peers wait for ever
    after = [stage.sample(i) for i in range(cell.devices)]
    busiest = max(
        100 * (b.busy_ns.get("ranks", 0) - a.busy_ns.get("ranks", 0)) / (b.at_ns - a.at_ns)
        for a, b in zip(before, after, strict=True)
    )
    return CollectiveRow(
        devices=cell.devices,
        ranks=cell.ranks,
        quota=cell.quota,
        held_up_ms=0.0,
        recovered_ms=0.0,
        full_steps_per_s=round(goal.full, 1),
        steps_per_s=round(steps / took_s, 2),
        of_quota_percent=round(100 * steps / took_s / goal.rate, 1),
        busiest_percent=round(busiest, 1),
        ended=ended,
        steps=steps,
        wanted_steps=goal.steps,
        bound_s=round(goal.bound_s, 1),
        load=load_average(),
    )


def reached(row: CollectiveRow) -> bool:
    """Whether the row meets the target."""
    return row.ended and row.of_quota_percent >= LEAST_PERCENT


def figures(rows: Sequence[CollectiveRow]) -> list[Figure]:
    """The table's rows: ranks, ranks after hold-ups, streams, and devices above the quota."""
    across = [row for row in rows if row.ranks != "streams"]
    sets = (
        ("ranks on 2, 4, 8 devices that meet", [row for row in across if not row.held_up_ms]),
        ("the same after one rank was held up", [row for row in across if row.held_up_ms]),
        ("two streams that hand over to each other", [r for r in rows if r.ranks == "streams"]),
    )
    return [*(_share(what, those) for what, those in sets if those), _excess(rows)]


def _name(row: CollectiveRow) -> str:
    held_up = f", held up {row.held_up_ms:g} ms" if row.held_up_ms else ""
    devices = "one device" if row.devices == 1 else f"{row.devices} devices"
    return f"{row.quota:g} %, {row.ranks}, {devices}{held_up}"


def _excess(rows: Sequence[CollectiveRow]) -> Figure:
    worst = max(rows, key=lambda row: row.busiest_percent - row.quota)
    good = [row for row in rows if row.busiest_percent - row.quota <= OVER_POINTS]
    return Figure(
        "ranks and streams that meet: busiest device, above the quota",
        f"<= {OVER_POINTS:g} points",
        f"worst {worst.busiest_percent - worst.quota:+.1f} ({_name(worst)})",
        f"{len(good)} of {len(rows)} cells",
        len(good) == len(rows),
    )


def _share(what: str, rows: Sequence[CollectiveRow]) -> Figure:
    worst = min(rows, key=lambda row: (row.ended, row.of_quota_percent))
    good = [row for row in rows if reached(row)]
    said = f"{worst.of_quota_percent:.0f} %"
    if not worst.ended:
        said = f"not ended in {worst.bound_s:g} s ({worst.steps} of {worst.wanted_steps} steps)"
    return Figure(
        f"{what}: share of full speed, of the quota",
        f">= {LEAST_PERCENT:g} %",
        f"worst {said} ({_name(worst)})",
        f"{len(good)} of {len(rows)} cells, load {max(row.load for row in rows):g}",
        len(good) == len(rows),
    )
