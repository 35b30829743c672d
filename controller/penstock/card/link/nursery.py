"""Nursery: a child of the program that has loaded what workers need, and forks them.

To load torch takes a worker seconds of a processor. So it is done once for all workers of a program
on this node, and a lost one comes back at once. The nursery itself opens no device and has one
thread. The program sends it orders over a pair of sockets, each a line of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from penstock.card.link import forks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

NURSERY, WORKER, STANDBY = "card-nursery", "card-worker", "card-standby"  # names of processes
_PR_SET_PDEATHSIG = 1
_ANSWERS_WITHIN_S = 90.0  # it loads torch first, on a busy machine
_CLOSES_WITHIN_S = 5.0
_PIECE_BYTES = 1 << 16  # of an order
_LINE_BYTES = 64  # of an answer


class NurseryEndedError(OSError):
    """The nursery has ended: it was killed, or it could not load what its workers need."""


class Forked(NamedTuple):
    """A worker: its pid, and a pidfd that belongs to the caller."""

    pid: int
    pidfd: int


class Nursery:
    """The program's side of a nursery. Any thread may use it."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        """Starts the nursery, whose workers call `main()` of a module. Raises OSError."""
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "penstock.card.link", str(theirs.fileno()), module]
            try:
                self._process = _starter.start(command, environment, theirs.fileno())
            except BaseException:
                self._connection.close()
                raise
        self._connection.settimeout(_ANSWERS_WITHIN_S)
        forks.register(self)

    def disown(self) -> None:
        """See `forks`: a child of this process has no nursery yet."""
        self._connection.close()
        self._process.returncode = 0

    def start(self, arguments: Sequence[str], descriptor: int) -> Forked:
        """Forks a worker that has these arguments; "{}" in one of them is the descriptor's number.

        Raises:
            NurseryEndedError: it has ended.
            OSError: there is no room for another process.
        """
        with self._lock:
            said, pidfds = self._ask({"start": list(arguments)}, descriptor)
        if "errno" in said:
            raise OSError(said["errno"], os.strerror(said["errno"]))
        return Forked(said["pid"], *pidfds)

    def status(self, pid: int) -> int:
        """The exit status of a worker that has ended, as `Popen` has it. A worker is asked once."""
        with self._lock:
            try:
                return int(self._ask({"ended": pid})[0]["status"])
            except OSError:
                return -signal.SIGKILL  # the kernel ends workers with their nursery

    def close(self) -> None:
        """Ends the nursery, and with it all workers that are left."""
        with self._lock:
            self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSES_WITHIN_S)

    def _ask(self, order: dict[str, object], *descriptors: int) -> tuple[dict[str, int], list[int]]:
        line = json.dumps(order).encode() + b"\n"
        try:
            socket.send_fds(self._connection, [line[:1]], descriptors)
            self._connection.sendall(line[1:])
            text, pidfds, *_ = socket.recv_fds(self._connection, _LINE_BYTES, 1)
        except OSError as error:
            self._connection.close()
            raise NurseryEndedError(error.errno, self._how_ended()) from error
        except BaseException:  # Ctrl-C: an answer would be taken for that of the next order
            self._connection.close()
            raise
        if not text:
            raise NurseryEndedError(0, self._how_ended())
        return json.loads(text), pidfds

    def _how_ended(self) -> str:
        who = "the process that starts workers"
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(_CLOSES_WITHIN_S)
            how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
            return f"{who} has ended ({how})"
        return f"{who} does not answer"


def nurse(descriptor: int, module: str) -> None:
    """Loads a module and forks workers as the program orders, until the program ends."""
    end_with_parent()
    name_process(NURSERY)
    with socket.socket(fileno=descriptor) as orders:
        orders.set_inheritable(False)
        main = importlib.import_module(module).main
        gc.freeze()  # what is loaded stays shared with the workers
        while True:
            text, descriptors, *_ = socket.recv_fds(orders, 1, 1)
            while text and not text.endswith(b"\n"):
                text += orders.recv(_PIECE_BYTES)
            if not text:
                return
            order = json.loads(text)
            if "ended" in order:
                answer = {"status": os.waitstatus_to_exitcode(os.waitpid(order["ended"], 0)[1])}
                orders.sendall(json.dumps(answer).encode())
            else:
                _fork(orders, main, order["start"], *descriptors)


def _fork(
    orders: socket.socket, main: Callable[[], int], arguments: Sequence[str], descriptor: int
) -> None:
    """Forks a worker, and tells the program."""
    try:
        pid = os.fork()
    except OSError as error:
        os.close(descriptor)
        orders.sendall(json.dumps({"errno": error.errno}).encode())
        return
    if pid == 0:
        orders.close()
        sys.argv[1:] = [one.replace("{}", str(descriptor)) for one in arguments]
        be_worker(WORKER, main)
    os.close(descriptor)
    pidfd = os.pidfd_open(pid)
    socket.send_fds(orders, [json.dumps({"pid": pid}).encode()], [pidfd])
    os.close(pidfd)


def be_worker(name: str, main: Callable[[], int]) -> NoReturn:
    """Makes a process that was just forked a worker: it ends with its parent, and by `main`."""
    end_with_parent()
    name_process(name)
    code: object = 1
    try:
        code = main()
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - as at the end of a program
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def name_process(name: str) -> None:
    """What ps and top call this process; at most 15 characters."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def end_with_parent() -> None:
    """The kernel sends SIGKILL to this process when the thread that has started it ends.

    A parent that has ended before is noticed by the connection to it, which has ended, too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


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
