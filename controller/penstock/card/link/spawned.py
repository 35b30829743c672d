"""Spawned workers: a card's worker as a child of this process, over a socket pair."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import threading
from typing import TYPE_CHECKING

from penstock.card.link import forks, monitor
from penstock.card.link.agreement import Agreement
from penstock.card.link.card_link import CardLink
from penstock.card.link.connection import Connection
from penstock.card.link.endpoint import InheritedEndpoint
from penstock.card.link.errors import CardError, ProtocolError
from penstock.card.link.handshake import say_goodbye, shake_hands
from penstock.card.link.nursery import Forked, Nursery, NurseryEndedError
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
_TELLS_WITHIN_S = 1.0  # the connection of a worker that has ended
_ENDS_WITHIN_S = 2.0  # after its link was closed


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
    """Starts a worker with the arguments `--link-fd N ARGUMENTS` and connects to it.

    It is forked by a `Nursery`, which has loaded the module. The module's `main()` calls
    `inherited`, then `serve`. `variables` are added to this process's environment as it was when
    the first worker of this module was started. The current folder is not searched for modules
    (Python 3.11 or newer). The worker does not see Ctrl-C. How it ended becomes part of the link's
    error.

    Raises:
        CardError: the process could not be started, or ended before it answered.
    """
    ours, theirs = socket.socketpair()
    try:
        process = _Process(*_forked(module, variables or {}, arguments, theirs.fileno()))
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

    def lose() -> None:
        link.lose(process.how_ended(0) or "its process has ended")

    def has_ended() -> None:
        # The end of the connection tells it first, after all that the worker has sent; but not if
        # a child of the worker holds the connection open.
        later = threading.Timer(_TELLS_WITHIN_S, lose)
        later.daemon = True
        later.start()

    process.on_end(has_ended)
    return SpawnedCard(process, link)


def inherited(descriptor: int, about: Description) -> Connection:
    """The connection of a spawned worker; `descriptor` is the number after `--link-fd`.

    Raises:
        PenstockError: the descriptor is no connection to a front-end of this release.
    """
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


def _forked(
    module: str, variables: Mapping[str, str], arguments: Sequence[str], descriptor: int
) -> tuple[Nursery, Forked]:
    """A worker, and the nursery that has forked it. Raises OSError."""
    key = (module, *sorted(variables.items()))
    arguments = [OPTION, "{}", *arguments]
    with _lock:
        nursery = _nurseries.get(key)
        if nursery is not None:
            with contextlib.suppress(NurseryEndedError):  # it was killed meanwhile
                return nursery, nursery.start(arguments, descriptor)
            nursery.close()
        environment = {**os.environ, "PYTHONSAFEPATH": "1", **variables}
        nursery = _nurseries[key] = Nursery(module, environment)
        return nursery, nursery.start(arguments, descriptor)


_lock = threading.Lock()
_nurseries: dict[tuple[object, ...], Nursery] = {}


@atexit.register
def _close_nurseries() -> None:
    for one in _nurseries.values():
        one.close()


def _forget_nurseries() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    _nurseries.clear()


os.register_at_fork(after_in_child=_forget_nurseries)


class _Process:
    """A worker, known by its pidfd. Any thread may ask how it has ended."""

    def __init__(self, nursery: Nursery, forked: Forked) -> None:
        self.pid = forked.pid
        self._nursery = nursery
        self._pidfd = forked.pidfd
        self._exit_status: int | None = None
        self._lock = threading.Lock()
        self._is_forked = False
        forks.register(self)

    def disown(self) -> None:
        """See `forks`: a child of this process has no children yet."""
        self._is_forked = True

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
        status = self._status(timeout_s)
        if status is None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            status = self._status(None)
        with self._lock:
            if self._pidfd >= 0:
                monitor.shared().forget(self._pidfd)
                os.close(self._pidfd)
                self._pidfd = -1
        return status if status is not None else 0

    def _status(self, timeout_s: float | None) -> int | None:
        """The exit status; None if it still runs after `timeout_s`; None waits for its end."""
        with self._lock:
            if self._exit_status is None:
                poll = select.poll()
                poll.register(self._pidfd, select.POLLIN)
                if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                    return None
                self._exit_status = self._nursery.status(self.pid)
            return self._exit_status
