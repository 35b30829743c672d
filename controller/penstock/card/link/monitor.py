"""Monitor: one thread that sends the pings of all links and notices processes that end.

It judges links by its own clock, and tells them how late it was itself: when this process was
stopped or got no processor, no card is blamed for it.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 0.2


class Watched(Protocol):
    """What the monitor looks after."""

    def tick(self, now_s: float, late_s: float) -> None:
        """Called every `TICK_S`; the monitor was late by `late_s`. Must not wait."""


class Monitor:
    """The thread, which starts with the first link and never ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[Watched] = []
        self._ends: dict[int, Callable[[], None]] = {}  # by pidfd
        self._thread: threading.Thread | None = None
        self._wake = -1

    def add(self, one: Watched) -> None:
        """Looks after a link from now on."""
        with self._lock:
            self._watched = [*self._watched, one]
        self._start()

    def remove(self, one: Watched) -> None:
        """Leaves a link alone; it may be unknown."""
        with self._lock:
            self._watched = [other for other in self._watched if other is not one]

    def on_end(self, pidfd: int, call: Callable[[], None]) -> None:
        """Calls `call` once when that process ends. It must not wait."""
        with self._lock:
            self._ends = {**self._ends, pidfd: call}
        self._start()
        os.eventfd_write(self._wake, 1)

    def forget(self, pidfd: int) -> None:
        """The process's end is of no interest any more."""
        with self._lock:
            self._ends = {other: call for other, call in self._ends.items() if other != pidfd}
        if self._wake >= 0:  # the first worker of a program may end before there is a thread
            os.eventfd_write(self._wake, 1)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._thread = threading.Thread(target=self._run, name="card-monitor", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        ticked_s = time.monotonic()
        while True:
            left_s = ticked_s + TICK_S - time.monotonic()
            self._see_ends(max(left_s, 0.0))
            now_s = time.monotonic()
            if now_s < ticked_s + TICK_S:
                continue
            late_s = now_s - ticked_s - TICK_S
            ticked_s = now_s
            for one in self._watched:
                one.tick(now_s, late_s)

    def _see_ends(self, timeout_s: float) -> None:
        ends = self._ends
        poll = select.poll()
        for descriptor in (self._wake, *ends):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(timeout_s * 1000):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
            elif descriptor in self._ends:
                self.forget(descriptor)
                ends[descriptor]()


_shared = Monitor()


def shared() -> Monitor:
    """The monitor of this process."""
    return _shared


def _renew() -> None:
    global _shared  # noqa: PLW0603 - a forked child has none of the parent's threads
    _shared = Monitor()


os.register_at_fork(after_in_child=_renew)
