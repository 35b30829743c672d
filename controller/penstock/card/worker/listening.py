"""Order of a worker that waits for its program: which card it is, where, and how both agree."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.card.frames import KINDS
from penstock.card.link import (
    Agreement,
    Listener,
    TlsIdentity,
    listen_tcp,
    listen_unix,
    serve,
)
from penstock.card.worker.worker import Worker
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.card.worker.standby import Turn


@dataclass(frozen=True)
class Order:
    """What the agent writes to a worker's standard input.

    Attributes:
        kind: The name of the adapter.
        memory_bytes: A simulated limit of the card's memory.
        host: The address to listen at, for a program on another node; empty: a unix socket.
        identity, peer: Of the connection to a program on another node.
    """

    kind: str
    memory_bytes: int | None
    agreement: Agreement
    host: str
    identity: TlsIdentity
    peer: str

    @classmethod
    def parse(cls, text: str) -> Order:
        """Raises `PenstockError` if the text is no order."""
        try:
            found = json.loads(text)
            return cls(
                str(found["kind"]), found["memory_bytes"],
                Agreement(str(found["application"]), bytes.fromhex(found["token"])),
                str(found["host"]),
                TlsIdentity(*(str(found[one]).encode("ascii")
                              for one in ("certificate", "key", "authority"))),
                str(found["peer"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise PenstockError(
                "the order of a card's worker cannot be read", f"{type(error).__name__}: {error}",
                "use the same release of Penstock for the agent and for --card-python",
            ) from error  # fmt: skip


@contextlib.contextmanager
def listening(order: Order) -> Iterator[tuple[Listener, str]]:
    """The listener and its address, until the program has come. Raises `PenstockError`."""
    if order.host:
        with listen_tcp(order.host, 0, order.identity, order.peer) as listener:
            yield listener, f"{order.host}:{listener.port}"
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-card-"))
    try:
        with listen_unix(folder / "card.sock") as listener:
            yield listener, str(folder / "card.sock")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve_next(order: Order, listener: Listener, turn: Turn) -> int:
    """Serves the program's next connection; returns what `penstock.card.link.serve` does."""
    worker = Worker(order.kind, order.memory_bytes)
    connection = listener.accept(order.agreement, worker.description)
    turn.came()
    return serve(connection, worker.handler(connection, turn), kinds=KINDS)
