"""The worker's side of a link: executes the frames of a front-end in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.card.link.agreement import Agreement
    from penstock.card.link.card_link import Part
    from penstock.card.link.tls import TlsIdentity

Handler = Callable[[int, int, memoryview], "Part | Sequence[Part] | None"]
EXIT_DONE = 0  # the front-end said goodbye
EXIT_FRONT_END_GONE = 75  # the front-end went away without a goodbye
EXIT_PROTOCOL = 76  # the front-end broke the protocol


@dataclass(frozen=True)
class Description:
    """What a worker tells of itself, beside its pid."""

    node: str
    device: str  # for example "gpu 0"
    torch_version: str = ""


class Connection:
    """A connection whose front-end has proved that it belongs to the application."""

    def send_event(self, kind: int, *parts: Part) -> None:
        """Sends a notice that no request asked for. Any thread may call it.

        It may wait until the front-end reads. When the front-end is gone, nothing is sent.
        """
        raise NotImplementedError


class Listener:
    """Waits for the one front-end of a worker; use it as a context manager."""

    @property
    def port(self) -> int:
        """The TCP port."""
        raise NotImplementedError

    def accept(
        self, agreement: Agreement, about: Description, timeout_s: float | None = None
    ) -> Connection:
        """Waits for a front-end that proves that it belongs to the application.

        Others are turned away and cannot delay it.

        Raises:
            PenstockError: no such front-end has come in time.
        """
        raise NotImplementedError


def listen_unix(path: Path, uid: int | None = None) -> Listener:
    """Listens at `path`, whose folder must be private. `uid`: of the front-end; None: this one's.

    Raises:
        PenstockError: the folder can be entered by others, or the socket cannot be made.
    """
    raise NotImplementedError


def listen_tcp(host: str, port: int, identity: TlsIdentity, peer: str) -> Listener:
    """Listens for TLS connections. `peer`: the front-end's name, as for `TcpEndpoint`.

    Raises:
        PenstockError: the address or the certificates cannot be used.
    """
    raise NotImplementedError


def serve(
    connection: Connection,
    handler: Handler,
    *,
    kinds: Mapping[int, str],
    inbox_bytes: int = 64 << 20,
    grace_s: float = 2.0,
    silent_s: float | None = None,
) -> int:
    """Calls `handler(kind, number, body)` for each frame, until the front-end goes away.

    The handler runs in the calling thread. `number` is 0 for a frame without a reply. Else what it
    returns is sent as the reply: it is written before the next frame is executed, so it may be a
    view of memory that later frames change. An exception of the handler becomes the reply, or, of
    a frame without a reply, a fault at the front-end; the worker goes on. `body` belongs to the
    handler.

    A reader thread takes at most `inbox_bytes` ahead, and one frame more. It answers pings, so the
    handler must not hold the interpreter's lock for more than a second, or the card seems to hang.

    Returns the code to exit with: `EXIT_DONE`, `EXIT_FRONT_END_GONE` or `EXIT_PROTOCOL`. When the
    front-end has gone away without a goodbye, frames that were not begun are dropped; if the
    process has not ended `grace_s` later, for example because the handler still runs, the reader
    thread ends it with that code. `silent_s`: the front-end is gone, too, if nothing has come from
    it for so long; None: 60 s over TCP, where a broken network shows in no other way, never else,
    where the kernel tells, and a front-end that is only stopped (Ctrl-Z) may go on.
    """
    raise NotImplementedError
