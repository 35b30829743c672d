"""Inbox: frames that a worker has received and not yet executed."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.card.link.frame import Frame


class Inbox:
    """A queue between the reader thread and the thread that executes, bounded in bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._has_frame = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._code: int | None = None

    def wait_for_room(self, timeout_s: float) -> bool:
        """Waits until a frame may be put in. False: not in time."""
        with self._lock:
            return self._has_room.wait_for(self._may_take, timeout_s)

    def put(self, frame: Frame) -> None:
        """Adds a frame, whatever its size."""
        with self._lock:
            self._frames.append(frame)
            self._bytes += len(frame.body)
            self._has_frame.notify()

    def end(self, code: int) -> None:
        """No frame is executed any more; `take` returns the code instead."""
        with self._lock:
            if self._code is None:
                self._code = code
            self._frames.clear()
            self._has_frame.notify()
            self._has_room.notify()

    def take(self) -> Frame | int:
        """The next frame, or the code with which the process is to end; waits for it."""
        with self._lock:
            while self._code is None and not self._frames:
                self._has_frame.wait()
            if self._code is not None:
                return self._code
            frame = self._frames.popleft()
            self._bytes -= len(frame.body)
            self._has_room.notify()
            return frame

    def _may_take(self) -> bool:
        return self._bytes <= self._most_bytes or self._code is not None
