"""`TraceFile`: a trace for Perfetto, written while it is taken.

The format is Chrome's array of trace events, one a line. Its readers need no bracket at the end, so
a file that was cut off by a crash can be read.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOST_WAITING = 200_000  # events that are not yet written; those beyond are left out
MOST_FILE_BYTES = 256 << 20
_PERIOD_S = 0.25


class Event(NamedTuple):
    """Something that lasted, on a track; times by the program's clock."""

    process: int
    track: int
    name: str
    start_ns: int
    duration_ns: int
    size_bytes: int


class TraceFile:
    """A file that takes events from any thread and writes them in a thread of its own.

    Attributes:
        on_period: Called by that thread from time to time.
        on_problem: Called once, with words, if nothing more can be written.
    """

    def __init__(self, file: str | Path, began_ns: int) -> None:
        """Times in the file are from `began_ns` on. Raises `PenstockError`."""
        self.on_period: Callable[[], None] = lambda: None
        self.on_problem: Callable[[str], None] = lambda _: None
        self.is_over = False
        self.left_out = 0
        self._file = file
        self._began_ns = began_ns
        self._written_bytes = 0
        self._waiting: deque[Event | str] = deque()
        self._closing = threading.Event()
        ways = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._descriptor = os.open(file, ways, 0o666)
        except OSError as error:
            raise PenstockError(
                f"no trace can be written to {file}", error.strerror or str(error),
                "name a file in a folder of yours",
            ) from error  # fmt: skip
        self._pid = os.getpid()
        self._is_first = True
        self._thread = threading.Thread(target=self._run, name="penstock-trace", daemon=True)
        self._thread.start()

    def add(self, event: Event) -> None:
        """Takes an event; leaves it out if too many wait to be written."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(event)
        else:
            self.left_out += 1

    def name_process(self, process: int, name: str) -> None:
        """Says what a process is called; those with lower numbers are shown first."""
        self._waiting.append(_metadata(process, 0, "process_name", name=name))
        self._waiting.append(_metadata(process, 0, "process_sort_index", sort_index=process))

    def name_track(self, process: int, track: int, name: str) -> None:
        """Says what a track is called."""
        self._waiting.append(_metadata(process, track, "thread_name", name=name))

    def count(self, process: int, name: str, at_ns: int, value: int) -> None:
        """A value that changes with time, such as memory in use."""
        self._waiting.append(json.dumps({
            "ph": "C", "name": name, "pid": process, "ts": self._time(at_ns),
            "args": {"value": value},
        }))  # fmt: skip

    def close(self) -> None:
        """Writes what waits, and the end."""
        if os.getpid() != self._pid:
            return  # a forked child: the file is its parent's
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(_PERIOD_S):
                self._write()
                self.on_period()
            self._write()
            self._put(("[\n" if self._is_first else "\n") + "]\n")
        except OSError as error:
            self._fail(error.strerror or str(error))
        finally:
            self.is_over = True
            os.close(self._descriptor)

    def _fail(self, why: str) -> None:
        self._waiting.clear()
        with contextlib.suppress(OSError):  # what was cut off has left room for the bracket
            os.write(self._descriptor, b"[\n]\n" if self._is_first else b"\n]\n")
        self.on_problem(f"the trace {self._file} ends here: {why}")

    def _write(self) -> None:
        """Writes all that waits, in pieces. Raises OSError."""
        while self._waiting:
            lines: list[str] = []
            while self._waiting and len(lines) < 10_000:
                one = self._waiting.popleft()
                lines.append(one if isinstance(one, str) else self._line(one))
            self._put(("[\n" if self._is_first else ",\n") + ",\n".join(lines))
            self._is_first = False
            if self._written_bytes > MOST_FILE_BYTES:
                raise OSError(0, f"it has {MOST_FILE_BYTES >> 20} MiB, trace fewer steps with "
                              "penstock.card.trace(file)")  # fmt: skip

    def _put(self, text: str) -> None:
        """Writes lines. Raises OSError, after which the file ends with the last whole line."""
        body, done = text.encode(), 0
        try:
            while done < len(body):
                done += os.write(self._descriptor, body[done:])
        except OSError:
            whole = max(body.rfind(b",\n", 0, done), 0)
            end = self._written_bytes + whole
            os.ftruncate(self._descriptor, end)
            os.lseek(self._descriptor, end, os.SEEK_SET)
            self._is_first = self._is_first and not whole
            raise
        self._written_bytes += done

    def _line(self, event: Event) -> str:
        size = f',"args":{{"bytes":{event.size_bytes}}}' if event.size_bytes else ""
        return (
            f'{{"ph":"X","name":{json.dumps(event.name)},"pid":{event.process},'
            f'"tid":{event.track},"ts":{self._time(event.start_ns)},'
            f'"dur":{max(event.duration_ns, 1) / 1000}{size}}}'
        )

    def _time(self, at_ns: int) -> float:
        return max(at_ns - self._began_ns, 0) / 1000


def _metadata(process: int, track: int, kind: str, **values: object) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": process, "tid": track, "args": values})
