"""Inbox: frames that a worker has received and not yet executed."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.card.link.frame import Frame


class Inbox:
    """A queue between the reader thread and the thread that executes, bounded in bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._frames: SimpleQueue[Frame | None] = SimpleQueue()
        # Each count has one writer, so no lock guards it.
        self._put_bytes = self._taken_bytes = 0
        self._is_full = False  # the reader waits for room
        self._has_room: SimpleQueue[None] = SimpleQueue()
        self._code: int | None = None

    def wait_for_room(self, timeout_s: float) -> bool:
        """Waits until a frame may be put in. False: not in time. For the reader."""
        if self._may_take():
            return True
        self._is_full = True
        if not self._may_take():  # looked again, after the other thread can see the flag
            try:
                self._has_room.get(timeout=timeout_s)
            except Empty:
                return self._may_take()
        self._is_full = False
        return self._may_take()

    def put(self, frame: Frame) -> None:
        """Adds a frame, whatever its size. For the reader."""
        self._put_bytes += len(frame.body)
        self._frames.put(frame)

    def end(self, code: int) -> None:
        """No frame is executed any more; `take` returns the code instead."""
        self._code = code
        self._frames.put(None)

    def take(self) -> Frame | int:
        """The next frame, or the code with which the process is to end; waits for it."""
        frame = self._frames.get()
        if self._code is not None or frame is None:
            return self._code or 0
        self._taken_bytes += len(frame.body)
        if self._is_full and self._may_take():
            self._has_room.put(None)
        return frame

    def _may_take(self) -> bool:
        return self._put_bytes - self._taken_bytes <= self._most_bytes
