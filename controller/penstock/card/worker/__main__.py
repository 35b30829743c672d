"""The program of a card's worker: `python -m penstock.card.worker`.

With `--link-fd` it is the child of its program. With `--listen` an agent has started it, and its
order comes on standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from typing import TYPE_CHECKING

# Penstock's own extension of torch must not load in a worker, nor may others that move work away.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from penstock.card.frames import KINDS
from penstock.card.link import Description, serve
from penstock.card.link.spawned import inherited, refuse
from penstock.card.worker.listening import Order, listening
from penstock.card.worker.worker import Worker
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.card.link import Connection

COMES_WITHIN_S = 60.0  # the program, after it was told where its worker listens


def main() -> int:
    """Serves one program until it ends; the exit code is that of `penstock.card.link.serve`."""
    parser = argparse.ArgumentParser(prog="penstock.card.worker", description=__doc__)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--link-fd", type=int, help="the connection to the program")
    how.add_argument("--listen", action="store_true", help="read an order from standard input")
    parser.add_argument("--kind", default="cpu", help="the kind of the card, such as cpu or cuda")
    parser.add_argument("--memory-bytes", type=int, help="a simulated limit of the card's memory")
    options = parser.parse_args()
    if options.listen:
        return _listen()
    try:
        worker = Worker(options.kind, options.memory_bytes)
    except PenstockError as error:
        refuse(options.link_fd, str(error))
        return 1
    connection = inherited(options.link_fd, _about(worker))
    return _serve(worker, connection)


def _listen() -> int:
    """Serves the program that an order names. The answer is one line of JSON."""
    answer = sys.stdout
    # An agent that ends the application tells the program, too, which takes its data first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        order = Order.parse(sys.stdin.readline())
        worker = Worker(order.kind, order.memory_bytes)
        with listening(order) as (listener, address):
            print(json.dumps({"address": address}), file=answer, flush=True)
            _let_go_of_agent()
            connection = listener.accept(order.agreement, _about(worker), COMES_WITHIN_S)
    except PenstockError as error:
        print(json.dumps({"error": str(error)}), file=answer, flush=True)
        return 1
    return _serve(worker, connection)


def _let_go_of_agent() -> None:
    """Writes nothing more to what the agent gave: it may end before this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _serve(worker: Worker, connection: Connection) -> int:
    return serve(connection, worker.handler(connection), kinds=KINDS)


def _about(worker: Worker) -> Description:
    return Description(platform.node(), worker.device_text, worker.torch_version)


if __name__ == "__main__":
    status = main()
    # The interpreter would take half a second to dismantle torch, for which the program waits.
    os._exit(status)
