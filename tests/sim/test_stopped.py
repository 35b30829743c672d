"""A stopped process does not hold up other processes, as with a driver in the kernel."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock_shim import paths

if TYPE_CHECKING:
    import subprocess

ROUNDS = 40
OWN_NAMESPACE = ()
ANOTHER_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def becomes(pid: int, state: str, within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while state_of(pid) != state and time.monotonic() < deadline:
        time.sleep(0.0005)
    return state_of(pid) == state


def rests(device, within_s: float = 5) -> bool:
    """Whether launches end: those that were queued when the process was stopped still run."""
    deadline = time.monotonic() + within_s
    before, now = None, [one.launches for one in device.record(0) if one.alive]
    while before != now and time.monotonic() < deadline:
        time.sleep(0.005)
        before, now = now, [one.launches for one in device.record(0) if one.alive]
    return before == now


def launcher_of(program: subprocess.Popen) -> int:
    """The launcher itself, or the child that runs it."""
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    return int(children[0]) if children else program.pid


@pytest.mark.parametrize(
    "before",
    [
        OWN_NAMESPACE,
        pytest.param(
            ANOTHER_NAMESPACE,
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace needs root"),
        ),
    ],
    ids=["own namespace", "another"],
)
def test_a_process_stopped_at_any_point_stays_stopped_and_the_device_answers(machine, before):
    program = machine.start(
        *before, paths.workload_path("penstock-launcher"), "--kernel-us", "1", "--seconds", "100"
    )
    try:
        device, waited = machine.machine, []
        deadline = time.monotonic() + 30
        while not any(one.launches > 1000 for one in device.record(0)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pid = launcher_of(program)
        for _ in range(ROUNDS):
            os.kill(pid, signal.SIGSTOP)
            assert becomes(pid, "T")
            look = threading.Thread(target=device.record, args=(0,), daemon=True)
            began = time.monotonic()
            look.start()
            look.join(10)
            assert not look.is_alive(), "whoever asks the device waits for a stopped process"
            waited.append(time.monotonic() - began)
            assert becomes(pid, "T"), (
                f"it was let go on, and not stopped again: {state_of(pid)} {waited}"
            )
            assert rests(device), "it launches although it is stopped"
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.002)
        assert becomes(pid, "S") or state_of(pid) in "RD"
    finally:
        program.kill()
        program.communicate()
    print(sorted(waited)[-12:])
