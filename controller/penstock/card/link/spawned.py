"""Spawned workers: a card's worker as a child of this process, over a socket pair."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from penstock.card.link import forks, monitor
from penstock.card.link.agreement import Agreement
from penstock.card.link.card_link import CardLink
from penstock.card.link.connection import Connection
from penstock.card.link.endpoint import InheritedEndpoint
from penstock.card.link.errors import CardError, ProtocolError
from penstock.card.link.handshake import say_goodbye, shake_hands
from penstock.card.link.stream import PlainStream
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.card.link.description import Description
    from penstock.card.link.errors import OperationError
    from penstock.card.link.settings import LinkSettings

OPTION = "--link-fd"
_APPLICATION = Agreement("spawned")  # the pair of sockets is proof enough
_ANSWERS_WITHIN_S = 10.0
_ENDS_WITHIN_S = 2.0  # after its link was closed
_PR_SET_PDEATHSIG = 1


class SpawnedCard:
    """A child process and the link to it. It ends with this process, however this one ends."""

    link: CardLink

    def __init__(self, process: _Process, link: CardLink) -> None:
        self._process = process
        self.link = link

    @property
    def pid(self) -> int:
        """The worker's pid."""
        return self._process.pid

    def close(self, timeout_s: float = 10.0) -> int:
        """Closes the link, waits until the process has ended, and kills it if it does not end.

        Returns its exit status; the negative number of the signal that killed it.

        Raises:
            CardError: this process is a forked child of the one that spawned the worker.
        """
        self.link.close(timeout_s)
        return self._process.end(_ENDS_WITHIN_S)

    def kill(self) -> None:
        """Ends the link and the process at once."""
        self.link.abort()
        self._process.end(0.0)


def spawn(
    name: str,
    module: str,
    *,
    kinds: Mapping[int, str],
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    settings: LinkSettings | None = None,
    on_event: Callable[[int, memoryview], None] | None = None,
    on_fault: Callable[[OperationError], None] | None = None,
    on_end: Callable[[CardError], None] | None = None,
) -> SpawnedCard:
    """Starts `python -m MODULE --link-fd N ARGUMENTS` and connects to it.

    The module calls `inherited`, then `serve`. `variables` are added to this process's environment.
    The current folder is not searched for modules (Python 3.11 or newer). The child does not see
    Ctrl-C. How it ended becomes part of the link's error.

    Raises:
        CardError: the process could not be started, or ended before it answered.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", module, OPTION, str(theirs.fileno()), *arguments]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", **(variables or {})}
    try:
        process = _Process(_starter.start(command, environment, theirs.fileno()))
    except OSError as error:
        ours.close()
        why = error.strerror or str(error)
        raise CardError(name, "cannot be started", why, "see whether Python can start") from error
    finally:
        theirs.close()
    try:
        link = CardLink(
            name, InheritedEndpoint(ours), _APPLICATION, kinds=kinds, settings=settings,
            on_event=on_event, on_fault=on_fault, how_ended=process.how_ended,
            on_end=on_end,
        )  # fmt: skip
    except BaseException:
        process.end(0)
        raise
    process.on_end(lambda: link.lose(process.how_ended(0) or "its process has ended"))
    return SpawnedCard(process, link)


def inherited(descriptor: int, about: Description) -> Connection:
    """The connection of a spawned worker; `descriptor` is the number after `--link-fd`.

    The process ends at once when its parent ends.

    Raises:
        PenstockError: the descriptor is no connection to a front-end of this release.
    """
    _end_with_parent()
    try:
        stream = PlainStream(socket.socket(fileno=descriptor), takes_descriptor=True)
        os.set_inheritable(descriptor, False)
        return Connection(stream, shake_hands(stream, _APPLICATION, about, _ANSWERS_WITHIN_S))
    except (OSError, ProtocolError) as error:
        raise PenstockError(
            f"descriptor {descriptor} is no connection to a program on the virtual card",
            str(error), "let the program start its workers itself",
        ) from error  # fmt: skip


def refuse(descriptor: int, why: str) -> None:
    """Tells the program why its worker ends: there is no such card, say."""
    with contextlib.suppress(OSError):
        say_goodbye(PlainStream(socket.socket(fileno=descriptor)), 0, why)


def _end_with_parent() -> None:
    """The kernel sends SIGKILL to this process when the parent's starting thread ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    # A parent that has ended before is noticed by the handshake: the connection has ended, too.


class _Process:
    """A child, known by its pidfd. Any thread may ask how it has ended."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        self._lock = threading.Lock()
        self._is_forked = False
        forks.register(self)

    def disown(self) -> None:
        """See `forks`: a child of this process has no children yet."""
        self._is_forked = True
        self._popen.returncode = 0  # nothing is to be waited for

    def on_end(self, call: Callable[[], None]) -> None:
        """Calls `call` when the process ends."""
        monitor.shared().on_end(self._pidfd, call)

    def how_ended(self, timeout_s: float) -> str | None:
        """How the process ended, in words; None if it runs after `timeout_s`."""
        status = self._status(timeout_s)
        if status is None:
            return None
        if status < 0:
            return f"its process ended (killed by signal {-status})"
        return f"its process ended (exit status {status})"

    def end(self, timeout_s: float) -> int:
        """Waits for the end, or kills the process. Returns its exit status, as `Popen` does."""
        if self._is_forked:
            return 0
        if self._status(timeout_s) is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with self._lock:
            status = self._popen.wait()
            if self._pidfd >= 0:
                monitor.shared().forget(self._pidfd)
                os.close(self._pidfd)
                self._pidfd = -1
        return status

    def _status(self, timeout_s: float) -> int | None:
        with self._lock:
            if self._pidfd >= 0:
                poll = select.poll()
                poll.register(self._pidfd, select.POLLIN)
                if not poll.poll(timeout_s * 1000):
                    return None
            return self._popen.wait()


class _Starter:
    """The thread that starts children.

    The kernel ends a child with the *thread* that started it. So a thread that lives as long as
    this process starts them. It blocks SIGINT, and with it all its children.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], descriptor: int
    ) -> subprocess.Popen[bytes]:
        """Starts a child that inherits this descriptor. Raises OSError if it cannot be started."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="card-starter", daemon=True)
                self._thread.start()
        made: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()

        def order() -> None:
            try:
                made.put(
                    subprocess.Popen(
                        command, env=environment, pass_fds=[descriptor], stdin=subprocess.DEVNULL
                    )
                )
            except OSError as error:
                made.put(error)

        self._orders.put(order)
        one = made.get()
        if isinstance(one, OSError):
            raise one
        return one

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while True:
            self._orders.get()()


_starter = _Starter()


def _renew() -> None:
    global _starter  # noqa: PLW0603 - a forked child has none of the parent's threads
    _starter = _Starter()


os.register_at_fork(after_in_child=_renew)
