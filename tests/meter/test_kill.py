"""The meter is killed again and again while a real tenant launches; no nanosecond is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.meter.support.metering import stored

from penstock_shim.pages import read_usage

WORKER = Path(__file__).parents[1] / "cli" / "support" / "gpu_worker.py"
METERING = Path(__file__).with_name("support") / "metering_process.py"
KILLS = 25


def meter_for(penstock, directory: Path, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(METERING), str(penstock.state), str(directory), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "metering\n"
    return process


def test_after_25_kills_the_sum_is_the_pages_counter_to_the_nanosecond(penstock, tmp_path):
    directory = tmp_path / "meter"
    worker = penstock.start(
        "--name=t", "--", sys.executable, str(WORKER), stdin=subprocess.PIPE, cores="60"
    )
    assert worker.stdout.readline() == "ready\n"
    worker.stdin.write("alloc 512\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "ok\n"
    worker.stdin.write("load 1000\n")
    worker.stdin.flush()
    chance = random.Random(7)  # noqa: S311 - moments to kill at
    try:
        for _ in range(KILLS):
            process = meter_for(penstock, directory, 600)
            time.sleep(chance.uniform(0, 0.25))
            process.kill()
            process.wait()
            process.stdout.close()
    finally:
        (row,) = penstock.ps()
        # The supervisor first: it asks the simulated device, which wakes a process that was stopped
        # with its lock, and that one would be charged for what it did meanwhile.
        for pid in (worker.pid, *(one["pid"] for one in row["processes"])):
            os.kill(pid, signal.SIGSTOP)
    page = penstock.state / "tenants" / "t" / "usage"
    last = meter_for(penstock, directory, 0.3)
    assert last.wait(60) == 0
    last.stdout.close()
    figures = read_usage(page).devices[0]
    amounts = stored(directory)
    assert figures.spent_ns > 500_000_000
    assert amounts.charged_ns == figures.spent_ns
    assert amounts.suspicions == 0
    assert amounts.byte_seconds > 0
    assert amounts.estimated_ns <= amounts.metered_ns
    # The whole of it is attributed to time that passed, once.
    assert amounts.charged_ns <= amounts.metered_ns + 10**9
