"""A card's worker that echoes, fails, sleeps and counts, as a program."""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import sys
import time
from pathlib import Path

from penstock.card.link import (
    Agreement,
    Connection,
    Description,
    TlsIdentity,
    listen_tcp,
    listen_unix,
    serve,
)
from penstock.card.link.spawned import inherited

ECHO, SLEEP, FAIL, COUNT, MAKE, NOTICE, SUM, STUCK, EXIT, KEEP = range(16, 26)
KINDS = {
    ECHO: "echo", SLEEP: "sleep", FAIL: "fail", COUNT: "count", MAKE: "make", NOTICE: "notice",
    SUM: "sum", STUCK: "stuck", EXIT: "exit", KEEP: "keep",
}  # fmt: skip
TOKEN = bytes(range(32))


class Card:
    """What the worker does with each kind of frame: one method each."""

    def __init__(self, connection: Connection, count: int) -> None:
        self._connection = connection
        self._count = count

    def handle(self, kind: int, number: int, body: memoryview):
        """Executes a frame."""
        return getattr(self, KINDS[kind])(body)

    def echo(self, body: memoryview):
        return body

    def sleep(self, body: memoryview) -> None:
        time.sleep(float(bytes(body)))

    def fail(self, body: memoryview) -> None:
        raise LookupError(bytes(body).decode())

    def count(self, body: memoryview) -> bytes:
        self._count += 1
        return str(self._count).encode()

    def make(self, body: memoryview) -> bytes:
        length, value = bytes(body).split()
        return bytes([int(value)]) * int(length)

    def notice(self, body: memoryview) -> None:
        self._connection.send_event(NOTICE, body)

    def sum(self, body: memoryview) -> bytes:
        return str(sum(body)).encode()

    def stuck(self, body: memoryview) -> None:
        while True:
            time.sleep(1)

    def keep(self, body: memoryview) -> None:
        self.kept = pickle.PickleBuffer(body)  # what refers to a buffer, as arrays do

    def exit(self, body: memoryview) -> None:
        raise SystemExit(int(bytes(body)))


def main() -> None:
    """Serves one front-end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--link-fd", type=int)
    parser.add_argument("--unix", type=Path)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--tcp", default="127.0.0.1:0")
    parser.add_argument("--identity", type=Path)
    parser.add_argument("--peer", default="")
    parser.add_argument("--inbox-bytes", type=int, default=64 << 20)
    parser.add_argument("--silent-s", type=float)
    parser.add_argument("--start-s", type=float, default=0)
    parser.add_argument("--shares-memory", action="store_true")
    parser.add_argument("--forks", action="store_true")
    told = parser.parse_args()
    time.sleep(told.start_s)
    connection = _connection(told)
    child = os.fork() if told.forks else 0
    if told.forks and not child:  # keeps the worker's descriptors
        time.sleep(60)
        os._exit(0)
    code = serve(
        connection, Card(connection, child).handle, kinds=KINDS, inbox_bytes=told.inbox_bytes,
        silent_s=told.silent_s, shares_memory=told.shares_memory,
    )  # fmt: skip
    sys.exit(code)


def _connection(told: argparse.Namespace) -> Connection:
    about = Description("b", "gpu 0", "2.15")
    if told.link_fd is not None:
        return inherited(told.link_fd, about)
    agreement = Agreement("app", TOKEN)
    if told.unix is not None:
        listener = listen_unix(told.unix, told.uid)
    else:
        files = (told.identity / name for name in ("certificate", "key", "authority"))
        host, _, port = told.tcp.rpartition(":")
        listener = listen_tcp(host, int(port), TlsIdentity.from_files(*files), told.peer)
        print(listener.port, flush=True)
    with contextlib.closing(listener):
        return listener.accept(agreement, about, 30)


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    main()
