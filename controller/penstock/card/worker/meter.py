"""`Meter`: what a card's worker has done so far, in plain numbers, and where its time went."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.card.frames import Figures, Kind

if TYPE_CHECKING:
    from penstock.card.frames import Statistics
    from penstock.card.worker.recorder import Recorder

_MOVES = {Kind.UPLOAD: "upload", Kind.WRITE: "upload", Kind.DOWNLOAD: "download"}
_LEAST_WAIT_NS = 20_000  # shorter waits for the program are not shown in a trace


class Meter:
    """Counts of one card, for the thread that executes. The clock is read twice for each frame.

    Attributes:
        operations: Calls of operations.
        recorder: What takes down each of them; None as long as no trace is taken.
    """

    def __init__(self) -> None:
        self.operations = 0
        self.recorder: Recorder | None = None
        self._executing_ns = self._exchanging_ns = self._idle_ns = 0
        self._began_ns = self._ended_ns = time.monotonic_ns()
        self._bytes = {"upload": 0, "download": 0, "gather": 0, "sum": 0}
        self._counts = {"gather": 0, "sum": 0}

    def begin(self) -> None:
        """A frame is there."""
        self._began_ns = now_ns = time.monotonic_ns()
        self._idle_ns += now_ns - self._ended_ns
        if self.recorder is not None and now_ns - self._ended_ns > _LEAST_WAIT_NS:
            self.recorder.wait("waits for the program", self._ended_ns, now_ns, 0)

    def end(self, kind: int) -> None:
        """The frame is executed."""
        self._ended_ns = now_ns = time.monotonic_ns()
        self._executing_ns += now_ns - self._began_ns
        if self.recorder is not None:
            if kind in _MOVES:
                self.recorder.operation(_MOVES[Kind(kind)], self._began_ns, now_ns, 0)
            self.recorder.send_if_due(now_ns)

    def moved(self, kind: int, size_bytes: int) -> None:
        """The frame moves so many bytes between the program and this card."""
        self._bytes[_MOVES[Kind(kind)]] += size_bytes

    def exchanged(self, what: str, began_ns: int, size_bytes: int) -> None:
        """An exchange with other cards ("gather" or "sum") has ended; the bytes are theirs."""
        now_ns = time.monotonic_ns()
        self._exchanging_ns += now_ns - began_ns
        self._bytes[what] += size_bytes
        self._counts[what] += 1
        if self.recorder is not None:
            self.recorder.wait(what, began_ns, now_ns, size_bytes)

    def figures(self, memory: Statistics) -> Figures:
        """All counts, up to the frame that is being executed."""
        return Figures(
            self._began_ns, self.operations, self._executing_ns - self._exchanging_ns,
            self._exchanging_ns, self._idle_ns, self._bytes["upload"], self._bytes["download"],
            self._counts["gather"], self._bytes["gather"], self._counts["sum"],
            self._bytes["sum"], memory.used_bytes, memory.peak_bytes, memory.total_bytes,
        )  # fmt: skip
