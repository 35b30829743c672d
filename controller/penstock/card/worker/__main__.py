"""The program of a card's worker: `python -m penstock.card.worker --link-fd N --kind KIND`."""

from __future__ import annotations

import argparse
import os
import platform
import sys

# Penstock's own extension of torch must not load in a worker, nor may others that move work away.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from penstock.card.frames import KINDS
from penstock.card.link import Description, serve
from penstock.card.link.spawned import inherited
from penstock.card.worker.worker import Worker


def main() -> int:
    """Serves one program until it ends; the exit code is that of `penstock.card.link.serve`."""
    parser = argparse.ArgumentParser(prog="penstock.card.worker", description=__doc__)
    parser.add_argument("--link-fd", type=int, required=True, help="the connection to the program")
    parser.add_argument("--kind", required=True, help="the kind of the card, such as cpu or cuda")
    parser.add_argument("--memory-bytes", type=int, help="a simulated limit of the card's memory")
    options = parser.parse_args()
    worker = Worker(options.kind, options.memory_bytes)
    about = Description(platform.node(), worker.device_text, worker.torch_version)
    connection = inherited(options.link_fd, about)
    return serve(connection, worker.handler(connection), kinds=KINDS)


if __name__ == "__main__":
    sys.exit(main())
