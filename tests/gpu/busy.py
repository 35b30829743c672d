"""Busy time of the device by tenant, measured without the shim: quotas are judged by it.

On a real device the device itself records when kernels ran (penstock-traced); a simulated one has
its own record. Either way it is a sum of busy time over the host's clock, and uses neither the shim
nor its pages.
"""

from __future__ import annotations

import bisect
import itertools
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.gpu.children import FailedError
from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from penstock_shim.simulator import Machine

SEGMENT = struct.Struct("<4Q")  # begin, end (ns of the device's clock), SM, whether preempted
STEP_S = 0.02


@dataclass(frozen=True)
class Segment:
    """A stretch of time in which a kernel ran."""

    begin_ns: int  # CLOCK_MONOTONIC
    end_ns: int
    preempted: bool  # it was taken off the device at the end


class BusyTime:
    """Busy time of one tenant over the host's clock (CLOCK_MONOTONIC, nanoseconds)."""

    def __init__(self, times_ns: Sequence[int], sums_ns: Sequence[int]) -> None:
        """`sums_ns`: busy time up to each of `times_ns`, both growing; linear between them."""
        self._times, self._sums = list(times_ns), list(sums_ns)

    @classmethod
    def of_segments(cls, segments: Iterable[Segment]) -> BusyTime:
        """The union of the segments, whichever process they are of."""
        times, sums, total = [], [], 0
        for begin, end in union((s.begin_ns, s.end_ns) for s in segments):
            times += [begin, end]
            sums += [total, total + end - begin]
            total += end - begin
        return cls(times, sums)

    def until(self, at_ns: float) -> float:
        """Busy nanoseconds up to `at_ns`."""
        place = bisect.bisect_right(self._times, at_ns)
        if place == 0:
            return 0.0
        if place == len(self._times):
            return self._sums[-1]
        begin, end = self._times[place - 1 : place + 1]
        low, high = self._sums[place - 1 : place + 1]
        return low + (high - low) * (at_ns - begin) / (end - begin) if end > begin else high

    def percent(self, begin_ns: float, end_ns: float) -> float:
        """The tenant's part of the device's time in between."""
        return 100 * (self.until(end_ns) - self.until(begin_ns)) / (end_ns - begin_ns)

    def windows(
        self, begin_ns: int, end_ns: int, length_s: float = 1.0, step_s: float = 0.05
    ) -> list[tuple[int, float]]:
        """Begin and percent of every stretch of `length_s` that lies between the two times."""
        length, step = round(length_s * 1e9), round(step_s * 1e9)
        return [
            (at, self.percent(at, at + length)) for at in range(begin_ns, end_ns - length + 1, step)
        ]


def union(intervals: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The union of the intervals, in order."""
    open_begin = open_end = None
    for begin, end in sorted(intervals):
        if open_end is None or open_begin is None or begin > open_end:
            if open_begin is not None and open_end is not None:
                yield open_begin, open_end
            open_begin, open_end = begin, end
        else:
            open_end = max(open_end, end)
    if open_begin is not None and open_end is not None:
        yield open_begin, open_end


def read_trace(path: Path, result: dict[str, Any]) -> list[Segment]:
    """The segments that penstock-traced wrote, on the host's clock.

    Args:
        path: its file.
        result: what it said of itself.

    Raises:
        FailedError: the device wrote nothing down, or more than there was room for.
    """
    if not result["segments"] or not result["clock"]["device_ns"]:
        raise FailedError("the device wrote no trace: it did not run the kernels")
    if result["missed"]:
        raise FailedError(f"{result['missed']} segments found no room in the trace")
    offset = result["clock"]["host_ns"] - result["clock"]["device_ns"]
    data = path.read_bytes()
    if len(data) % SEGMENT.size:
        raise FailedError(f"{path.name} ends in the middle of a segment")
    return [
        Segment(begin + offset, end + offset, bool(mark))
        for begin, end, _, mark in SEGMENT.iter_unpack(data)
    ]


def overlap_ns(one: Sequence[Segment], other: Sequence[Segment]) -> int:
    """For how long work of both was on the device at once."""
    first = list(union((s.begin_ns, s.end_ns) for s in one))
    second = list(union((s.begin_ns, s.end_ns) for s in other))
    both = list(union([*first, *second]))
    return sum(end - begin for begin, end in [*first, *second]) - sum(e - b for b, e in both)


def slices_ns(one: Sequence[Segment], other: Sequence[Segment]) -> tuple[list[int], list[int]]:
    """Lengths of the turns that two contenders had, and of the gaps between them."""
    marked = [(s.begin_ns, s.end_ns, 0) for s in one] + [(s.begin_ns, s.end_ns, 1) for s in other]
    turns, gaps, last_end = [], [], None
    for _, group in itertools.groupby(sorted(marked), key=lambda segment: segment[2]):
        held = list(group)
        if last_end is not None:
            gaps.append(held[0][0] - last_end)
        last_end = held[-1][1]
        turns.append(last_end - held[0][0])
    return turns[1:-1], gaps


class Recorder:
    """A simulated device's own record, sampled by a thread while a check runs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._samples: dict[str, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(STEP_S):
            self.look()

    def look(self) -> None:
        """Takes a sample now: what is asked of this very moment is then exact."""
        with self._lock:
            sums: dict[str, int] = {}
            at_ns = time.monotonic_ns()
            for record in self._machine.record(0):
                sums[record.tag] = sums.get(record.tag, 0) + record.busy_ns
                at_ns = record.at_ns
            for tag, busy_ns in sums.items():
                self._samples.setdefault(tag, []).append((at_ns, busy_ns))

    def busy_time(self, tag: str) -> BusyTime:
        """Of the processes of that tag, since they began."""
        samples = self._samples.get(tag, [])
        return BusyTime([at for at, _ in samples], [busy for _, busy in samples])
