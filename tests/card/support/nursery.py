"""`Nursery`: workers of cards as forks of a process that has imported what a worker imports.

A worker that is started as a program needs two seconds of a processor to import torch, and these
tests start some hundreds. Tests that run programs start workers as programs do, and so do those in
`card_link`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback

_MOST_BYTES = 1 << 17  # of an order: the environment


class Nursery:
    """Starts workers in place of `penstock.card.link.spawned`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def start(self, command, environment, descriptor) -> Worker:
        """Starts a worker with the arguments of a command `python -m MODULE ARGUMENT…`."""
        at = command.index(str(descriptor))
        order = {"environment": dict(environment), "arguments": command[3:], "descriptor": at - 3}
        return Worker(self, self._ask(order, descriptor))

    def status(self, pid) -> int:
        """Waits until a worker has ended; returns its exit status, as `Popen` does.

        The program's monitor may ask after `close`, whose end of the workers it has seen.
        """
        try:
            return self._ask({"ended": pid})
        except OSError:
            if self._connection.fileno() >= 0:
                raise
            return -signal.SIGKILL  # as the kernel ended it

    def _ask(self, order, *descriptors) -> int:
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(order).encode()], descriptors)
            return int(self._connection.recv(64))

    def close(self) -> None:
        """Ends the process, and with it all workers that are left."""
        with self._lock:
            self._connection.close()
        self._process.wait(timeout=30)


class Worker:
    """A worker, with what is used of `subprocess.Popen`."""

    def __init__(self, nursery, pid) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def wait(self) -> int:
        """Waits until it has ended; returns its exit status."""
        if self.returncode is None:
            self.returncode = self._nursery.status(self.pid)
        return self.returncode


def _serve(connection) -> None:
    """Follows orders until the tests end."""
    from penstock.card.worker.__main__ import main

    while True:
        text, descriptors, *_ = socket.recv_fds(connection, _MOST_BYTES, 1)
        if not text:
            return
        order = json.loads(text)
        if "ended" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["ended"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                connection.close()
                _be_worker(main, order, *descriptors)
            os.close(*descriptors)
        connection.send(str(answer).encode())


def _be_worker(main, order, descriptor) -> None:
    os.environ.clear()
    os.environ.update(order["environment"])
    order["arguments"][order["descriptor"]] = str(descriptor)
    sys.argv[1:] = order["arguments"]
    code = 1
    try:
        code = main()
    except BaseException:  # noqa: BLE001 - as at the end of a program
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        _serve(orders)
