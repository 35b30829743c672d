"""Send queue: frames on their way to the other side, in the order in which they were put in."""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from penstock.card.link.stream import MOST_BUFFERS

if TYPE_CHECKING:
    from penstock.card.link.frame import Buffers
    from penstock.card.link.shared_memory import SlotWriter
    from penstock.card.link.stream import Stream

_BATCH_BYTES = 256 << 10  # of one call to the kernel, or one larger frame


class SendQueue:
    """A queue of frames and the right to write them.

    A program's frames are written by a sender thread (`run`) alone: Ctrl-C interrupts the program's
    own threads anywhere, also between a write and the note of how much was written. A worker has no
    sender thread: its threads write by turns (`write`, `write_or_leave`).
    """

    def __init__(self, stream: Stream, most_bytes: int) -> None:
        self.is_over = False  # whether more than `most_bytes` are queued
        self.queued_bytes = 0
        self._most_bytes = most_bytes
        self._stream = stream
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0
        self._frames: deque[Buffers] = deque()
        self._urgent: bytes | None = None
        self._put_count = self._sent_count = 0
        self._is_failed = False
        self._write_lock = threading.Lock()
        self._batch: Buffers = []  # what is being written
        self._batch_bytes = 0  # of it, when it began
        self._batch_count = 0
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._is_idle = True  # whether the sender thread waits for a wake
        self._slots: SlotWriter | None = None  # once the worker wants them

    def put(self, frame: Buffers) -> int:
        """Adds a frame; returns its position, counted from 1."""
        size = len(frame[0]) if len(frame) == 1 else sum(map(len, frame))
        with self._lock:
            if self._is_failed:
                return self._put_count
            # Ctrl-C may interrupt this thread after each call, so the counts come first, and the
            # sender thread counts as awake after it was woken.
            self._put_count = position = self._put_count + 1
            self.queued_bytes += size
            self.is_over = self.queued_bytes > self._most_bytes
            self._frames.append(frame)
            self._wake()
        return position

    def use_memory(self, slots: SlotWriter) -> None:
        """Sends large bodies through shared memory from now on."""
        self._slots = slots

    def put_urgent(self, frame: bytes) -> None:
        """Sets the frame to send before all that are queued; a former one is replaced."""
        with self._lock:
            self._urgent = frame
            self._wake()

    def run(self) -> None:
        """The sender thread: writes whatever is put in. Raises OSError when the stream breaks."""
        while True:
            self._wakes.get()
            while True:
                self.write()
                with self._lock:
                    if self._is_failed:
                        return
                    if not self._has_more():
                        self._is_idle = True
                        break

    def write(self) -> None:
        """Waits for the write lock and writes all frames. Raises OSError if the stream breaks."""
        with self._write_lock:
            while not self._write_some():
                self._stream.wait_writable()

    def write_or_leave(self) -> None:
        """Writes all frames, or leaves them to the thread that is writing.

        Raises:
            OSError: the stream is broken.
        """
        # Another thread may find nothing more to write and then release the lock. So each thread
        # looks again after it has released the lock.
        while self._has_more() and self._write_lock.acquire(blocking=False):
            try:
                while not self._write_some():
                    self._stream.wait_writable()
            finally:
                self._write_lock.release()

    def wait(self, sent: int | None, timeout_s: float | None) -> bool:
        """Waits until frame `sent` is written; None: until there is room. False: not in time.

        Also returns when the queue has failed.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._waiters += 1
            try:
                while not self._is_failed:
                    if self._sent_count >= sent if sent is not None else not self.is_over:
                        return True
                    left_s = None if deadline_s is None else deadline_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        return False
                    self._changed.wait(left_s)
            finally:
                self._waiters -= 1
        return True

    def fail(self) -> None:
        """Drops all frames and wakes all threads; the stream must be shut as well."""
        with self._lock:
            self._is_failed = True
            self._frames.clear()
            self._urgent = None
            self.is_over = False
            self.queued_bytes = 0
            self._changed.notify_all()
        self._wakes.put(None)

    def _wake(self) -> None:
        """Wakes the sender thread, unless it will look for frames again. With the lock."""
        if self._is_idle:
            self._wakes.put(None)
            self._is_idle = False

    def _has_more(self) -> bool:
        return bool(self._frames) or self._urgent is not None

    def _write_some(self) -> bool:
        """Writes until nothing is left, True, or the socket is full, False. With the write lock."""
        while True:
            if not self._batch and not self._next_batch():
                return True
            sent = self._stream.send(self._batch)
            if not sent:
                return False
            _drop(self._batch, sent)
            if not self._batch:
                self._batch_is_sent()

    def _next_batch(self) -> bool:
        batch, size, count = self._batch, 0, 0
        slots, large = self._slots, None
        with self._lock:
            if self._urgent is not None:
                batch.append(self._urgent)
                self._urgent = None
            while self._frames and size < _BATCH_BYTES and len(batch) < MOST_BUFFERS:
                if slots is not None and slots.takes(self._frames[0]):
                    if batch:  # is sent first: the other may have to wait for a slot
                        break
                    large = self._frames[0]
                frame = self._frames.popleft()
                batch += frame
                size += sum(map(len, frame))
                count += 1
            self._batch_bytes, self._batch_count = size, count
        if slots is not None and large is not None:
            batch[: len(large)] = [slots.moved(large)]
        return bool(batch)

    def _batch_is_sent(self) -> None:
        with self._lock:
            if self._is_failed:
                return
            self.queued_bytes -= self._batch_bytes
            self._sent_count += self._batch_count
            self.is_over = self.queued_bytes > self._most_bytes
            if self._waiters:
                self._changed.notify_all()


def _drop(buffers: Buffers, count: int) -> None:
    """Removes the first `count` bytes."""
    done = 0
    for one in buffers:
        if len(one) > count:
            break
        count -= len(one)
        done += 1
    del buffers[:done]
    if count:
        buffers[0] = memoryview(buffers[0])[count:]
