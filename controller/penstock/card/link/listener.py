"""Listener: a worker waits for its front-end, on a unix socket or over TLS."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from queue import Empty, Queue
from typing import TYPE_CHECKING

from penstock.card.link.connection import Connection
from penstock.card.link.endpoint import check_user
from penstock.card.link.errors import ProtocolError
from penstock.card.link.handshake import shake_hands
from penstock.card.link.stream import PlainStream, Stream
from penstock.card.link.tls import secured
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from penstock.card.link.agreement import Agreement
    from penstock.card.link.description import Description
    from penstock.card.link.tls import TlsIdentity

PROVES_WITHIN_S = 10.0  # who connects must prove who it is
_MOST_CANDIDATES = 16  # at once; further ones are turned away
_BACKLOG = 64
_LOOKS_S = 0.2


class Listener:
    """Waits for the one front-end of a worker; use it as a context manager."""

    def __init__(
        self, listening: socket.socket, secure: Callable[[socket.socket], Stream], where: str
    ) -> None:
        """`secure`: makes a stream of an accepted connection, or raises OSError and closes it."""
        self._listening = listening
        self._secure = secure
        self._where = where
        self._free = threading.Semaphore(_MOST_CANDIDATES)
        self._proved: Queue[Connection] = Queue()
        self._refusal = "nobody has connected"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Listens no longer; a connection that was accepted goes on."""
        self._listening.close()

    def accept(
        self, agreement: Agreement, about: Description, timeout_s: float | None = None
    ) -> Connection:
        """Waits for a front-end that proves that it belongs to the application.

        Others are turned away; each has a thread of its own, so that it cannot delay the front-end.

        Raises:
            PenstockError: no such front-end has come in time.
        """
        agreement.check_token()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._listening.settimeout(_LOOKS_S)
        while deadline_s is None or time.monotonic() < deadline_s:
            with contextlib.suppress(TimeoutError):
                accepted, _ = self._listening.accept()
                self._try(accepted, agreement, about)
            with contextlib.suppress(Empty):
                return self._proved.get_nowait()
        raise PenstockError(
            f"no program has connected to {self._where} in {timeout_s:g} s", self._refusal,
            "start the worker again when its program runs", reason="timed-out",
        )  # fmt: skip

    def _try(self, accepted: socket.socket, agreement: Agreement, about: Description) -> None:
        if not self._free.acquire(blocking=False):
            accepted.close()
            return
        threading.Thread(
            target=self._examine, args=(accepted, agreement, about), name="card-caller", daemon=True
        ).start()

    def _examine(self, accepted: socket.socket, agreement: Agreement, about: Description) -> None:
        try:
            accepted.settimeout(PROVES_WITHIN_S)
            stream = self._secure(accepted)
            try:
                agreed = shake_hands(stream, agreement, about, PROVES_WITHIN_S)
            except BaseException:
                stream.close()
                raise
            self._proved.put(Connection(stream, agreed))
        except (OSError, ProtocolError) as error:
            self._refusal = f"the last one was turned away: {error}"
        finally:
            self._free.release()


def listen_unix(path: Path, uid: int | None = None) -> Listener:
    """Listens at `path`, whose folder must be private. `uid`: of the front-end; None: this one's.

    Raises:
        PenstockError: the folder can be entered by others, or the socket cannot be made.
    """
    try:
        folder = path.parent.stat()
        if folder.st_uid != os.getuid() or stat.S_IMODE(folder.st_mode) & 0o077:
            raise PenstockError(
                f"{path.parent} is not private", "others could reach the card's socket there",
                f"make it with: install --directory --mode 700 {path.parent}",
            )  # fmt: skip
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen(_BACKLOG)
    except OSError as error:
        raise PenstockError(*_cannot_listen(str(path), error)) from error

    def secure(accepted: socket.socket) -> Stream:
        check_user(accepted, uid)
        return PlainStream(accepted, takes_descriptor=True)

    return Listener(listening, secure, str(path))


def listen_tcp(host: str, port: int, identity: TlsIdentity, peer: str) -> Listener:
    """Listens for TLS connections. `peer`: the front-end's name, as for `TcpEndpoint`.

    Raises:
        PenstockError: the address or the certificates cannot be used.
    """
    context = identity.context(is_server=True)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise PenstockError(*_cannot_listen(f"{host}:{port}", error)) from error
    return Listener(listening, lambda accepted: secured(accepted, context, peer), f"{host}:{port}")


def _cannot_listen(where: str, error: OSError) -> tuple[str, str, str]:
    return f"cannot listen at {where}", error.strerror or str(error), "choose another address"
