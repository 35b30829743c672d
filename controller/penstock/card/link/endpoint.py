"""Endpoints: where a card's worker is reached."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.card.link.stream import PlainStream, Stream
from penstock.card.link.tls import TlsIdentity, secured

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.card.link.agreement import Agreement

_AGAIN_S = 0.05  # until the next try, while the worker does not listen yet
_ANSWERS_S = 5.0  # a node that is there; else its name may have another address by now


class Endpoint(Protocol):
    """Where a worker is reached."""

    def connect(self, agreement: Agreement, deadline_s: float) -> Stream:
        """A stream to the worker, tried again until the worker listens.

        Raises:
            OSError: there is none at the deadline (of `time.monotonic`), or it is another one.
        """


@dataclass(frozen=True)
class InheritedEndpoint:
    """One end of a socket pair, whose other end a child process has inherited."""

    connection: socket.socket

    def connect(self, agreement: Agreement, deadline_s: float) -> Stream:  # noqa: ARG002 - see Endpoint
        """The stream over this end, which belongs to the link from now on."""
        return PlainStream(self.connection)


@dataclass(frozen=True)
class UnixEndpoint:
    """A unix socket on this node. `uid`: the user that the worker must have; None: this one."""

    path: Path
    uid: int | None = None

    def connect(self, agreement: Agreement, deadline_s: float) -> Stream:
        """See `Endpoint`. Raises OSError if it fails."""
        agreement.check_token()

        def dial() -> socket.socket:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.settimeout(_left(deadline_s))
                connection.connect(str(self.path))
            except BaseException:
                connection.close()
                raise
            return connection

        connection = _tried(dial, deadline_s)
        check_user(connection, self.uid)
        return PlainStream(connection)


@dataclass(frozen=True)
class TcpEndpoint:
    """A worker on another node, by mutual TLS 1.3.

    `peer`: a name in the worker's certificate (URI or DNS), or "sha256:" and its fingerprint in
    hexadecimal digits.
    """

    host: str
    port: int
    identity: TlsIdentity
    peer: str

    def connect(self, agreement: Agreement, deadline_s: float) -> Stream:
        """See `Endpoint`. Raises OSError if it fails."""
        agreement.check_token()
        context = self.identity.context(is_server=False)

        def dial() -> socket.socket:
            within_s = min(_left(deadline_s), _ANSWERS_S)
            return socket.create_connection((self.host, self.port), within_s)

        connection = _tried(dial, deadline_s)
        connection.settimeout(_left(deadline_s))
        return secured(connection, context, self.peer)


def check_user(connection: socket.socket, uid: int | None) -> None:
    """Closes the connection unless its other end has this user; None: this process's own.

    Raises:
        PermissionError: the other end is another user's.
    """
    size = struct.calcsize("3i")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, theirs, _ = struct.unpack("3i", raw)
    if theirs != (os.getuid() if uid is None else uid):
        connection.close()
        raise PermissionError(f"the other side is a process of user {theirs}")


def _tried(dial: Callable[[], socket.socket], deadline_s: float) -> socket.socket:
    while True:
        try:
            return dial()
        except OSError as error:
            if not _may_come(error):
                raise
            if _left(deadline_s) <= _AGAIN_S:
                if isinstance(error, TimeoutError):
                    raise
                why = "nobody listens there" if _is_refused(error) else error.strerror
                raise ConnectionRefusedError(why) from error
        time.sleep(_AGAIN_S)


def _is_refused(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, ConnectionRefusedError))


def _may_come(error: OSError) -> bool:
    """Whether the worker may only not listen yet, or its node not have its name yet."""
    is_away = error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}
    return is_away or _is_refused(error) or isinstance(error, (socket.gaierror, TimeoutError))


def _left(deadline_s: float) -> float:
    return max(deadline_s - time.monotonic(), 0.001)
