"""Processes that tests start, and pids that are reused on purpose."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from penstock.node.enforcement.process import Process, read_stat


def start(started, *command: str, env=None) -> subprocess.Popen:
    program = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    started.append(program)
    deadline = time.monotonic() + 10
    # In the middle of its exec a process has no environment.
    while not Path(f"/proc/{program.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.001)
    return program


def reuse_pid(started, first: subprocess.Popen, meant: Process, *command: str) -> subprocess.Popen:
    """Ends `first` and starts another process with its pid, as if pids had wrapped round."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not os.access(last, os.W_OK):
        pytest.skip("pids cannot be chosen here")
    first.kill()
    first.wait()
    time.sleep(0.05)  # start times are in hundredths of a second
    for _ in range(50):
        with contextlib.suppress(OSError):
            last.write_text(str(meant.pid - 1))
        second = start(started, *(command or ("sleep", "60")))
        if second.pid == meant.pid:
            break
        second.kill()
    else:
        pytest.skip("the pid was never given again")
    if read_stat(second.pid).start_ticks == meant.start_ticks:
        pytest.skip("both began within a hundredth of a second")
    return second


def line(program) -> str:
    return program.stdout.readline().strip()
