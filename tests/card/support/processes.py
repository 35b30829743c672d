"""Processes of cards, seen from outside."""

import os
import time


def assert_gone(pids):
    """These processes have ended, or do so in a moment."""
    deadline_s = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
