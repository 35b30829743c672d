"""Lines on stderr hold up nobody who writes them."""

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


def test_a_full_pipe_holds_up_nobody_who_says_something():
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
