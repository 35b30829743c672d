"""Standby: while a worker serves its program, another waits for the program's next connection.

All are forks of one process that has loaded torch, opens no device and has one thread. So a program
that has lost its connection to a worker, or whose worker was killed, gets the next one at once. The
new worker opens its device once the former one has ended, which is killed if need be: it may hang.
"""

from __future__ import annotations

import functools
import gc
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING

from penstock.card.link import EXIT_DONE
from penstock.card.link.nursery import (
    NURSERY,
    STANDBY,
    WORKER,
    be_worker,
    name_process,
)
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

_CAME, _OVER, _GO, _BUSY = b"came", b"over", b"go", b"busy"
_MOST_BYTES = 256  # of what a worker says
_AGAIN_S = 1.0  # until the next fork, after one that ended before its program came


class Turn:
    """A worker's turn to serve its program, after the former worker's."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent

    def came(self) -> None:
        """A program has connected: from now on another worker stands by."""
        name_process(WORKER)
        self._parent.send(_CAME)

    def dismiss(self) -> None:
        """The program's run is over: no program comes again."""
        self._parent.send(_OVER)

    def take(self, program: bytes) -> None:
        """Returns when the former worker has ended. `program` tells this one from others.

        Raises:
            PenstockError: another program uses the card.
        """
        self._parent.send(program or b"-")
        if self._parent.recv(_MOST_BYTES) != _GO:
            raise PenstockError(
                "the card cannot be used", "another program uses it",
                "wait until that has ended, or start another worker with its own credentials",
                reason="not-now",
            )  # fmt: skip


class _Worker:
    """A forked worker, from its parent's view.

    Attributes:
        has_come: Whether a program has connected to it.
        dismisses: Whether it was told that the run is over.
        program: That program, once the worker may serve it.
    """

    def __init__(self, work: Callable[[Turn], int]) -> None:
        """Raises OSError if there is no room for a process."""
        self.has_come = self.dismisses = False
        self.program: bytes | None = None
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                self._socket.close()
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent ends it
                be_worker(STANDBY, functools.partial(work, Turn(theirs)))
        self._pidfd = os.pidfd_open(self.pid)

    def fileno(self) -> int:
        """Readable when it has said something, or has ended."""
        return self._socket.fileno()

    def said(self) -> bytes:
        """What it has said; nothing once it has ended."""
        return self._socket.recv(_MOST_BYTES)

    def answer(self, word: bytes) -> None:
        """Answers what it said."""
        self._socket.send(word, socket.MSG_NOSIGNAL)

    def end(self) -> int:
        """Kills it if it runs; returns its exit status, negative for a signal."""
        if not select.select([self._pidfd], [], [], 0)[0]:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self._socket.close()
        return os.waitstatus_to_exitcode(status)


class Standby:
    """The workers of a card: at most one serves, one stands by, others ask for their turn.

    Attributes:
        is_dismissed: Whether it was said that the program's run is over.
    """

    def __init__(
        self,
        work: Callable[[Turn], int],
        on_end: Callable[[int, int], None],
        stays_s: float | None = None,
        *,
        comes_again: bool = False,
    ) -> None:
        """`work` is what a worker does, with its `Turn`.

        It waits for a program, calls `came`, then `take` before it opens its device, and returns an
        exit status of `penstock.card.link.serve`. `on_end`: called with the pid and the status of
        each worker that has ended otherwise than in order. `stays_s`: for so long the program may
        be away; None: for ever, also after it has left in order. `comes_again`: it may, after it
        has left, until it is said that its run is over.
        """
        self._work, self._on_end, self._stays_s = work, on_end, stays_s
        self._workers: list[_Worker] = []
        self._alone_s = time.monotonic()
        self._comes_again, self.is_dismissed = comes_again, False
        self._has_left = self._is_stopped = False
        self._stops = os.eventfd(0, os.EFD_NONBLOCK)

    def stop(self) -> None:
        """Ends the workers, and then `run`: a signal handler may call this at any moment.

        If it raised an error instead, that could be lost: in calls that a fork makes, none is seen.
        """
        self._is_stopped = True
        os.eventfd_write(self._stops, 1)  # a child that was just forked may write it, too

    def run(self) -> None:
        """Serves until it is stopped, or the program has left for good or is away for too long."""
        name_process(NURSERY)
        gc.freeze()  # what is loaded stays shared with the workers
        try:
            while not self._is_over():
                if all(one.has_come for one in self._workers):
                    self._workers.append(_Worker(self._work))
                awaited: list[_Worker | int] = [*self._workers, self._stops]
                for one in select.select(awaited, [], [], self._wait_s())[0]:
                    if isinstance(one, _Worker):
                        self._follow(one)
                    else:
                        os.eventfd_read(one)
        finally:
            for one in self._workers:
                one.end()

    @property
    def _serving(self) -> _Worker | None:
        return next((one for one in self._workers if one.program is not None), None)

    def _is_over(self) -> bool:
        if self._is_stopped:
            return True
        if self._stays_s is None or self._serving is not None:
            return False
        if self.is_dismissed or (self._has_left and not self._comes_again):
            return True
        return time.monotonic() > self._alone_s + self._stays_s

    def _wait_s(self) -> float | None:
        if self._stays_s is None or self._serving is not None:
            return None
        return max(0.0, self._alone_s + self._stays_s - time.monotonic())

    def _follow(self, worker: _Worker) -> None:
        """What a worker has said, or its end."""
        said = worker.said()
        if not said:
            self._end(worker)
        elif said == _CAME:
            worker.has_come = True
        elif said == _OVER:
            worker.dismisses = True
        elif (former := self._serving) is None or former.program == said:
            if former is not None:
                self._end(former)
            worker.program = said
            worker.answer(_GO)
        else:
            worker.answer(_BUSY)

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        status = worker.end()
        self.is_dismissed |= worker.dismisses  # now that it has answered
        if worker.program is not None:
            self._has_left, self._alone_s = status == EXIT_DONE, time.monotonic()
        if status != EXIT_DONE:
            self._on_end(worker.pid, status)
        if not worker.has_come:
            time.sleep(_AGAIN_S)
