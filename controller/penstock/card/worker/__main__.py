"""The program of a card's worker: `python -m penstock.card.worker`.

With `--link-fd` it is forked by its program's nursery. With `--listen` an agent has started it, and
its order comes on standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from functools import partial

# Penstock's own extension of torch must not load in a worker, nor may others that move work away.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from penstock.card.frames import KINDS
from penstock.card.link import serve
from penstock.card.link.spawned import inherited, refuse
from penstock.card.worker.listening import Order, listening, serve_next
from penstock.card.worker.standby import Standby
from penstock.card.worker.worker import Worker
from penstock.model import PenstockError

COMES_WITHIN_S = 60.0  # the program, after it was told where its worker listens, or was lost


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
    worker = Worker(options.kind, options.memory_bytes)
    try:
        worker.open()
    except PenstockError as error:
        refuse(options.link_fd, str(error))
        return 1
    connection = inherited(options.link_fd, worker.description)
    return serve(connection, worker.handler(connection), kinds=KINDS)


def _listen() -> int:
    """Serves the program that an order names.

    The answer is one line of JSON; a line follows for each worker that was killed.
    """
    answer = sys.stdout
    # An agent that ends the application tells the program, too, which takes its data first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        order = Order.parse(sys.stdin.readline())
        with listening(order) as (listener, address):
            print(json.dumps({"address": address}), file=answer, flush=True)
            _let_go_of_agent()

            def tell_agent(pid: int, status: int) -> None:
                with contextlib.suppress(OSError):  # it may have ended
                    print(json.dumps({"pid": pid, "status": status}), file=answer, flush=True)

            Standby(partial(serve_next, order, listener), tell_agent, COMES_WITHIN_S).run()
    except PenstockError as error:
        print(json.dumps({"error": str(error)}), file=answer, flush=True)
        return 1
    return 0


def _let_go_of_agent() -> None:
    """Reads nothing more, and writes no errors, to what the agent gave."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


if __name__ == "__main__":
    status = main()
    # The interpreter would take half a second to dismantle torch, for which the program waits.
    os._exit(status)
