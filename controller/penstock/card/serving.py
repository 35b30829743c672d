"""Serving a card: this machine's card waits at an address for programs with its credentials."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

# Penstock's own extension of torch must not load in a worker, nor may others that move work away.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from penstock.card.credentials import PROGRAM, SERVED, Credentials
from penstock.card.link import Agreement, listen_tcp
from penstock.card.worker.listening import Order, serve_next
from penstock.card.worker.standby import Standby
from penstock.card.worker.worker import Worker
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.card.worker.standby import Turn

_MOST_BYTES = 4096  # of an error
_ENDING = (signal.SIGTERM, signal.SIGINT)


def serve_card(
    kind: str,
    host: str,
    port: int,
    folder: Path,
    say: Callable[[str], None],
    once_s: float | None = None,
) -> None:
    """Serves one program after another until this process is ended.

    `kind`: the card's, such as cuda:1. `port`: 0 for any. `folder`: the worker's credentials. `say`
    is called with a line for each thing that happens. `once_s`: the card is for one run of
    `penstock train`; it is served until the run is over, or no program has been there for so many
    seconds. Signal n then ends this process with exit code 128+n, which a Job does not take for
    success.

    Raises:
        PenstockError: there is no such card, or the address or the credentials cannot be used.
    """
    credentials = Credentials.read(folder)
    agreement = Agreement(SERVED, credentials.token)
    order = Order(kind, None, agreement, host, credentials.identity, PROGRAM)
    _check(kind)

    def on_end(pid: int, status: int) -> None:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        say(f"worker {pid} {how}; the next program is served")

    told: list[int] = []  # which signals

    def stop(number: int, _: object) -> None:
        told.append(number)
        standby.stop()

    def work(turn: Turn) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return serve_next(order, listener, turn)

    standby = Standby(work, on_end, once_s, comes_again=once_s is not None)
    for number in _ENDING:
        signal.signal(number, stop)
    with listen_tcp(host, port, credentials.identity, PROGRAM) as listener:
        say(f"card {kind} waits for programs at {host}:{listener.port}")
        standby.run()
    if not told:
        why = "its run is over" if standby.is_dismissed else f"no program came for {once_s:g} s"
        say(f"card {kind} is served no longer: {why}")
    elif once_s is not None:
        sys.exit(128 + told[0])


def _check(kind: str) -> None:
    """Looks whether there is such a card, in a child: who has opened a device cannot fork workers.

    Raises:
        PenstockError: there is none.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            Worker(kind).open()
        except PenstockError as error:
            said = "\0".join((error.what, error.why, error.fix))
            os.write(theirs, said.encode()[:_MOST_BYTES])
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        text = told.read().decode(errors="replace")
    os.waitpid(pid, 0)
    if text:
        raise PenstockError(*text.split("\0", 2))
