"""The gate's arithmetic in a discrete-event model: simulated time, so exact, fast and repeatable.

The device serves kernels in the order of their submission. Processes submit as fast as they are
let; wake-ups come up to 100 us late, kernels differ by 5 %.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock_shim._native import ffi, lib

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
START = 1_000 * SECOND
HOST_NS = 4 * US
POLL_NS = 2 * MS


@dataclass
class Process:
    """A program at the gate: its launches in flight, and the time that it expects of them."""

    estimate_ns: int = 0
    out: deque[tuple[int, int]] = field(default_factory=deque)


@dataclass
class Model:
    """One device, one tenant, several processes."""

    permille: int
    kernel_ns: int
    processes: int = 1
    synchronise: bool = False
    rng: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311

    def __post_init__(self) -> None:
        self.gate: Any = ffi.new("penstock_gate_device *")
        self.running = [Process() for _ in range(self.processes)]
        self.queue = [(START, index) for index in range(self.processes)]
        self.free_ns = START
        self.busy: list[tuple[int, int]] = []

    def run(self, until_ns: int) -> None:
        """Simulates all events before `until_ns`."""
        wait = ffi.new("uint64_t *")
        while self.queue[0][0] < until_ns:
            now, index = heapq.heappop(self.queue)
            process = self.running[index]
            self._settle(process, now)
            in_flight = sum(each.estimate_ns for each in self.running)
            launch = ffi.new("penstock_gate_launch *", {"now_ns": now, "in_flight_ns": in_flight})
            if lib.penstock_gate_admit(self.gate, self.permille, launch, wait):
                end = self._launch(process, now)
                then = end if self.synchronise else now + HOST_NS
            else:
                then = now + min(int(wait[0]), POLL_NS if in_flight else 20 * MS)
                then += self.rng.randint(0, 100 * US)
            heapq.heappush(self.queue, (then, index))

    def _launch(self, process: Process, now: int) -> int:
        begin = max(now + HOST_NS, self.free_ns)
        end = begin + round(self.kernel_ns * self.rng.uniform(0.95, 1.05))
        self.free_ns = end
        self.busy.append((begin, end))
        process.out.append((begin, end))
        process.estimate_ns += self.kernel_ns
        return end

    def _settle(self, process: Process, now: int) -> None:
        while process.out and process.out[0][1] <= now:
            begin, end = process.out.popleft()
            process.estimate_ns -= self.kernel_ns
            fresh = lib.penstock_gate_mark(self.gate, begin, end, 2**64 - 1)
            lib.penstock_gate_charge(self.gate, self.permille, fresh)

    def share(self, begin_ns: int, end_ns: int) -> float:
        """Percent of [begin, end) that the device was busy."""
        inside = (min(end, end_ns) - max(begin, begin_ns) for begin, end in self.busy)
        return 100 * sum(max(0, part) for part in inside) / (end_ns - begin_ns)

    def errors(self, begin_ns: int, count: int) -> list[float]:
        """How far each of `count` windows of one second is from the quota, in points."""
        steps = [begin_ns + step * SECOND // 4 for step in range(count)]
        return [abs(self.share(at, at + SECOND) - self.permille / 10) for at in steps]


@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize("kernel_us", [200, 2000])
@pytest.mark.parametrize("quota", [10, 30, 50, 70, 90])
def test_backlogged_use_follows_the_quota(quota: int, kernel_us: int, processes: int) -> None:
    model = Model(10 * quota, kernel_us * US, processes)
    model.run(START + 5 * SECOND)
    errors = model.errors(START + SECOND // 2, 12)
    assert statistics.fmean(errors) <= 0.5 + kernel_us / 20_000
    assert max(errors) <= 1 + kernel_us / 20_000


@pytest.mark.parametrize("quota", [10, 50, 70])
def test_launch_and_synchronise_loops_follow_the_quota(quota: int) -> None:
    model = Model(10 * quota, 200 * US, synchronise=True)
    model.run(START + 5 * SECOND)
    assert statistics.fmean(model.errors(START + SECOND // 2, 12)) <= 1


def test_use_follows_a_quota_that_falls_from_70_to_20() -> None:
    model = Model(700, 200 * US)
    model.run(START + 2 * SECOND)
    model.permille = 200
    model.run(START + 5 * SECOND)
    assert max(model.errors(START + 2 * SECOND + 200 * MS, 8)) <= 2
