"""Time that the host takes from a program is not charged as the device's work.

A container reaches its limit of processor time, a neighbour takes the processor, an administrator
stops a job and continues it: the device has nothing to do meanwhile. The charge is compared with
the device's own record.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.bench.quota import Workload
from penstock.bench.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.bench.stage import StageTenant

pytestmark = pytest.mark.timed

PROGRAM = str(Path(__file__).with_name("support") / "charging.py")
MS = 1_000_000
HELD_S = 0.5
AROUND_MS = 100  # of the work that lies at the two ends of what is compared
GAPS = 1.3  # those between the shortest kernels are charged, and the device does not count them
LONG_S = 120  # programs are ended with the stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage("h200") as made:
        yield made


@dataclass
class Account:
    """The charge of a tenant and the device's own figure since the last call."""

    stage: Stage
    tenant: StageTenant
    charged_ns: int = 0
    busy_ns: int = 0
    at_ns: int = 0

    def ask(self) -> tuple[float, float, float]:
        """Milliseconds charged, busy and passed."""
        before = self.charged_ns, self.busy_ns, self.at_ns
        self.charged_ns = self.tenant.usage.snapshot().devices[0].spent_ns
        sample = self.stage.sample()
        self.busy_ns, self.at_ns = sample.busy_ns["tenant"], sample.at_ns
        now = self.charged_ns, self.busy_ns, self.at_ns
        charged, busy, passed = ((b - a) / MS for a, b in zip(before, now, strict=True))
        return charged, busy, passed


def started(
    stage: Stage, quota: float, words: list[str] | str
) -> tuple[Account, subprocess.Popen[str]]:
    """A tenant that has settled in, and its account from now on.

    `words` are the launcher's, or name one of the programs in charging.py.
    """
    tenant = stage.tenant("tenant", quota)
    if isinstance(words, str):
        child = stage.start(tenant, [PROGRAM, words], program=sys.executable)
    else:
        child = stage.start(tenant, words)
    stage.wait_until_busy(["tenant"])
    stage.watch(0.5)
    account = Account(stage, tenant)
    account.ask()
    return account, child


@pytest.mark.parametrize(
    ("call", "workload"),
    [
        ("cuLaunchKernel", Workload(1200)),
        ("cuLaunchKernel", Workload(200, sync_every=1)),
        ("cuEventRecord", Workload(3)),
        ("cuEventRecord", Workload(1200)),
        ("cuStreamSynchronize", Workload(20, sync_every=1)),
    ],
    ids=str,
)
def test_a_call_that_is_held_up_is_not_charged(stage: Stage, call: str, workload: Workload) -> None:
    account, _ = started(stage, 60, workload.arguments(LONG_S))
    stage.machine.inject("slow", call=call, count=1, delay_ns=round(HELD_S * 1e9))
    stage.watch(HELD_S + 0.5)
    charged, busy, _ = account.ask()
    assert 0.9 * busy - AROUND_MS < charged < GAPS * busy + AROUND_MS
    stage.watch(1)
    charged, busy, passed = account.ask()
    assert 0.9 * busy < charged
    assert busy > 0.4 * passed, "it waits for what it never had, or for what its kernel never took"


@pytest.mark.parametrize(
    "words",
    [
        Workload(20, sync_every=1).arguments(LONG_S),
        [*Workload(200, sync_every=1).arguments(LONG_S), "--threads", "4"],
        Workload(3).arguments(LONG_S),
    ],
    ids=["waits for each launch", "four threads wait", "never waits"],
)
def test_a_program_that_was_stopped_does_not_pay_for_that(words: list[str]) -> None:
    for _ in range(3):  # where it is stopped is chance
        with Stage("h200") as stage:
            account, child = started(stage, 60, words)
            os.kill(child.pid, signal.SIGSTOP)
            time.sleep(HELD_S)
            os.kill(child.pid, signal.SIGCONT)
            stage.watch(0.2)
            charged, busy, _ = account.ask()
            assert 0.9 * busy - AROUND_MS < charged < GAPS * busy + AROUND_MS


def test_a_program_that_is_stopped_while_it_launches_loses_nothing_of_what_it_knows(
    stage: Stage,
) -> None:
    account, child = started(stage, 60, Workload(3).arguments(LONG_S))
    for _ in range(12):
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(child.pid, signal.SIGCONT)
        time.sleep(0.03)
    charged, busy, _ = account.ask()
    assert charged < GAPS * busy + 12 * 10
    stage.watch(1)
    charged, busy, passed = account.ask()
    assert 0.9 * busy < charged
    assert busy > 0.4 * passed


@contextlib.contextmanager
def short_of_processors(child: subprocess.Popen[str]) -> Iterator[None]:
    """Two other programs compete all the time for the one processor that the program may use."""
    processor = max(os.sched_getaffinity(0))
    for task in Path(f"/proc/{child.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {processor})
    burn = [
        sys.executable,
        "-c",
        f"import os\nos.sched_setaffinity(0, {{{processor}}})\nwhile True: pass",
    ]
    hogs = [subprocess.Popen(burn) for _ in range(2)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@pytest.mark.alone
@pytest.mark.parametrize(
    ("workload", "gaps"),
    [(Workload(20, sync_every=1), 1.1), (Workload(200, sync_every=1), 1.1), (Workload(3), GAPS)],
    ids=["waits", "waits longer", "never waits"],
)
def test_a_program_short_of_processors_pays_for_what_it_used(
    stage: Stage, workload: Workload, gaps: float
) -> None:
    account, child = started(stage, 60, workload.arguments(LONG_S))
    with short_of_processors(child):
        stage.watch(1)
        account.ask()
        stage.watch(3)
        charged, busy, passed = account.ask()
    assert busy > 0.1 * passed
    assert 0.9 * busy < charged < gaps * busy + 0.03 * passed


@pytest.mark.alone
def test_a_measurement_that_was_held_up_teaches_nothing(stage: Stage) -> None:
    account, child = started(stage, 60, Workload(20, sync_every=1).arguments(LONG_S))
    for _ in range(20):
        stage.machine.inject("slow", call="cuEventRecord", skip=1, count=1, delay_ns=8 * MS)
        stage.watch(0.05)
        stage.machine.lift()
    with short_of_processors(child):
        account.ask()
        stage.watch(2)
        charged, busy, passed = account.ask()
    assert 0.9 * busy < charged < 1.1 * busy + 0.05 * passed


@pytest.mark.parametrize(
    ("delay_ms", "words"),
    [
        (3, Workload(2000, sync_every=1).arguments(LONG_S)),
        (0.03, "launches_that_grow"),
    ],
    ids=["longer than the launches", "and they grow"],
)
def test_a_driver_that_records_slowly_each_time_makes_nothing_free(
    stage: Stage, delay_ms: float, words: list[str] | str
) -> None:
    stage.machine.inject("slow", call="cuEventRecord", delay_ns=round(delay_ms * MS))
    account, _ = started(stage, 25, words)
    stage.watch(1)
    account.ask()
    stage.watch(3)
    charged, busy, passed = account.ask()
    assert busy < 1.1 * charged
    assert 0.1 * passed < busy < 0.28 * passed
