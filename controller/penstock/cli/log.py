"""Event log of serving processes: one line per event on stderr.

The reader of stderr (a journal, a terminal, a pager) may stop reading. Therefore a separate thread
writes the lines, and when too many lines are waiting, the oldest are dropped.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_LINES = 1000  # lines waiting to be written
ENDS_WITHIN_S = 1.0  # time limit for writing the remaining lines at exit


class _Lines:
    """A queue of lines that a thread writes to a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[str] = deque(maxlen=MOST_LINES)
        self._came = threading.Condition()
        self._writes = False
        thread = threading.Thread(target=self._write, name="log", daemon=True)
        # The program may later block signals in order to wait for them, so this thread must not
        # receive any.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        atexit.register(self.flush)

    def put(self, line: str) -> None:
        with self._came:
            self._waiting.append(line)
            self._came.notify_all()

    def flush(self) -> None:
        """Waits until all lines are written, but no longer than `ENDS_WITHIN_S`."""
        with self._came:
            self._came.wait_for(lambda: not self._waiting and not self._writes, ENDS_WITHIN_S)

    def _write(self) -> None:
        while True:
            with self._came:
                self._writes = False
                self._came.notify_all()
                self._came.wait_for(lambda: bool(self._waiting))
                raw = (self._waiting.popleft() + "\n").encode(errors="replace")
                self._writes = True
            while raw:
                raw = raw[self._written(raw) :]

    def _written(self, raw: bytes) -> int:
        """Number of bytes that were written or that cannot be written."""
        try:
            return os.write(self._descriptor, raw)
        except BlockingIOError:  # the parent made the descriptor non-blocking
            time.sleep(0.01)
            return 0
        except OSError:  # the reader has closed its end
            return len(raw)


def log_as(program: str) -> Callable[..., None]:
    """Returns a function that logs an event with its fields: as JSON, or as words on a terminal."""
    try:
        put = _Lines(sys.stderr.fileno()).put
    except (io.UnsupportedOperation, ValueError):  # stderr has no file descriptor

        def put(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

    def log(event: str, **fields: object) -> None:
        if sys.stderr.isatty():
            words = "  ".join(
                f"{key}={value}" for key, value in fields.items() if value is not None
            )
            put(f"{program}: {event}  {words}")
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        put(json.dumps({"time": now, "event": event, **fields}))

    return log
