"""Processes of cards, seen from outside."""

import time
from pathlib import Path


def assert_gone(pids):
    """These processes have ended, or do so in a moment."""
    deadline_s = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
