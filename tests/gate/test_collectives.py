"""Kernels that wait for each other go at the speed of their quota: the gates open together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.timed, pytest.mark.alone]  # eight ranks on two processors

KERNELS = 5
KERNEL_US = 1000
STEPS = 60


@dataclass(frozen=True)
class Job:
    """The outcome of a run."""

    steps_s: list[float]
    used_s: list[float]
    """Device time of each device, by its own record."""

    @property
    def seconds(self) -> float:
        return sum(self.steps_s)


def play(
    program: str, ranks: int, how: str, quota: float | None, *hold: int, steps: int = STEPS
) -> Job:
    devices = 1 if how == "streams" else ranks
    with Stage(f"h200,{devices}") as stage:
        tenant = stage.tenant("tenant", quota) if quota else None
        words = [str(word) for word in (ranks, how, steps, KERNELS, KERNEL_US, *hold)]
        child = stage.start(tenant, words, program=program)
        output, errors = child.communicate(timeout=60)
        assert child.returncode == 0, errors
        used = [
            sum(record.busy_ns for record in stage.machine.record(device)) / 1e9
            for device in range(devices)
        ]
    return Job([int(line) / 1e6 for line in output.split()], used)


def check(job: Job, native: Job, quota: float) -> None:
    """The job is as fast as its quota allows, within a third, and no faster after a burst."""
    share = quota / 100
    assert len(job.steps_s) == len(native.steps_s)
    assert job.seconds <= native.seconds / share * 1.33 + 0.5
    for used_s in job.used_s:
        assert used_s <= job.seconds * share * 1.1 + 0.05


@pytest.mark.parametrize(
    ("ranks", "how", "quota"),
    [
        (2, "threads", 10),
        (2, "processes", 30),
        (2, "processes", 95),
        (4, "threads", 50),
        (4, "processes", 70),
        (8, "threads", 30),
        (2, "streams", 10),
        (3, "streams", 50),
    ],
)
def test_ranks_that_meet_in_every_step_get_their_share(
    program: Callable[[str], str], ranks: int, how: str, quota: float
) -> None:
    steps = 30 if quota == 10 else STEPS
    native = play(program("collective"), ranks, how, None, steps=steps)
    check(play(program("collective"), ranks, how, quota, steps=steps), native, quota)


@pytest.mark.parametrize("quota", [10, 30, 70, 90, 95])
def test_streams_of_one_thread_run_side_by_side_under_a_quota_as_without(
    program: Callable[[str], str], quota: float
) -> None:
    """Once, the gate let a part of a step through at a time, so one stream ran after the other.

    Steps had 44 to 58 % of the quota's share of full speed.
    """
    native = play(program("collective"), 2, "streams", None)
    job = play(program("collective"), 2, "streams", quota, steps=2 * STEPS)
    full_s = sum(native.steps_s) / len(native.steps_s)
    later = job.steps_s[STEPS // 2 :]  # behind what a first burst gives
    assert sum(later) / len(later) <= full_s / (quota / 100) / 0.8
    for used_s in job.used_s:
        assert used_s <= job.seconds * quota / 100 * 1.1 + 0.05


@pytest.mark.parametrize(
    ("ranks", "how", "hold_ms"), [(2, "threads", 30), (2, "processes", 400), (4, "threads", 400)]
)
def test_ranks_go_on_at_their_share_when_one_was_held_up(
    program: Callable[[str], str], ranks: int, how: str, hold_ms: int
) -> None:
    """The time that the other kernels spin meanwhile is charged once, to all together."""
    native = play(program("collective"), ranks, how, None)
    job = play(program("collective"), ranks, how, 50, 1, 20, hold_ms)
    check(Job(job.steps_s[25:], []), Job(native.steps_s[25:], []), 50)
    assert job.seconds <= (native.seconds + hold_ms / 1000) / 0.5 * 1.33 + 0.5


@pytest.mark.parametrize(("ranks", "how"), [(2, "streams"), (2, "threads")])
def test_ranks_meet_where_streams_share_one_hardware_queue(
    program: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, ranks: int, how: str
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    job = play(program("collective"), ranks, how, 50, steps=30)
    assert len(job.steps_s) == 30
    for used_s in job.used_s:
        assert used_s <= job.seconds * 0.5 * 1.2 + 0.1
