"""Logging to stderr never blocks the thread that logs."""

from __future__ import annotations

import os
import subprocess
import sys
import time

WRITER = """
import sys, time
from penstock.cli.log import log_as
log = log_as("x")
begun_s = time.monotonic()
for number in range(5000):
    log("event", number=number, text="x" * 100)
print(time.monotonic() - begun_s, flush=True)
"""


def test_a_full_pipe_holds_up_no_thread_that_logs():
    ours, theirs = os.pipe()
    begun_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", WRITER], stdout=subprocess.PIPE, stderr=theirs, text=True,
        check=True, timeout=30,
    )  # fmt: skip
    assert float(done.stdout) < 2
    assert time.monotonic() - begun_s < 10
    os.close(theirs)
    os.close(ours)


def test_the_last_line_is_written_before_the_process_ends():
    script = "from penstock.cli.log import log_as as say; say('x')('last', a=1)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert '"event": "last", "a": 1' in done.stderr


def test_the_log_thread_takes_no_signals_from_a_program_that_waits_for_them():
    """Once, a SIGTERM that came before the program waited for it ended the program at once."""
    program = """
import os, signal
from penstock.cli.log import log_as
log = log_as("x")
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
log("started")
os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigwait({signal.SIGTERM}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (0, "15\n"), done.stderr
