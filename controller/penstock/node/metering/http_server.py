"""A small HTTP server with fixed limits on the resources that its clients can use.

One thread serves a few connections, with one request each. If there are too many connections, one
that has sent no request is dropped first, so that clients with a request are served.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_CONNECTIONS = 64
BACKLOG = 128
ACCEPTED_AT_ONCE = 16  # new connections accepted before open ones are served
SPEAKS_WITHIN_S = 5.0
READS_WITHIN_S = 30.0  # time within which a client must read the response
LONGEST_REQUEST_BYTES = 16 << 10
AGAIN_S = 5.0  # pause before binding a taken address is retried
_IN_USE = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}


class Page(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    kind: str  # the Content-Type
    body: bytes


@dataclass
class _Connection:
    socket: socket.socket
    until_s: float
    said: bytes = b""
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


class PageServer:
    """Serves pages by GET in its own thread, from `start` to `close`."""

    def __init__(
        self,
        pages: Mapping[str, Callable[[str], Page]],
        report: Callable[..., None] = lambda event, **fields: None,  # noqa: ARG005
    ) -> None:
        """`pages`: by path, called with the request's Accept header. `report`: logs events."""
        self._pages = pages
        self._report = report
        self._listener: socket.socket | None = None
        self._connections: dict[int, _Connection] = {}  # by descriptor, oldest first
        self._selector = selectors.DefaultSelector()
        self._wakes, self._waker = os.pipe()
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self, address: str, port: int) -> int | None:
        """Starts serving on `port`, or on any free port if 0; returns the port.

        Returns None if the port is taken; binding is then retried.

        Raises:
            PenstockError: this machine has no such address.
        """
        try:
            self._listen(address, port)
        except (OSError, OverflowError) as error:
            if not _is_taken(error):
                raise PenstockError(
                    f"cannot serve metrics on {address}:{port}",
                    getattr(error, "strerror", None) or str(error),
                    "name another address and port",
                ) from error
            self._report("port is taken", address=f"{address}:{port}", reason=str(error))
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._thread = threading.Thread(
            target=self._serve, args=(address, port), name="pages", daemon=True
        )
        self._thread.start()
        return None if self._listener is None else int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stops serving. May be called more than once."""
        if self._thread is None:
            return
        self._ending = True
        os.write(self._waker, b"x")
        self._thread.join()
        self._thread = None
        for connection in list(self._connections.values()):
            self._drop(connection)
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        os.close(self._wakes)
        os.close(self._waker)

    def _listen(self, address: str, port: int) -> None:
        if not 0 <= port < 1 << 16:
            raise OverflowError("a port is a number from 0 to 65535")
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener

    def _serve(self, address: str, port: int) -> None:
        while not self._ending:
            if self._listener is None:
                self._try_again(address, port)
            for key, _ in self._selector.select(AGAIN_S if self._listener is None else 1.0):
                if key.fileobj is self._listener:
                    self._accept(self._listener)
                elif key.fd in self._connections:
                    self._go_on(self._connections[key.fd])
            now_s = time.monotonic()
            for late in [one for one in self._connections.values() if one.until_s < now_s]:
                self._drop(late)

    def _try_again(self, address: str, port: int) -> None:
        with contextlib.suppress(OSError):
            self._listen(address, port)
            self._report("port is free", address=f"{address}:{port}")

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                made, _ = listener.accept()
            except OSError:  # no connection is waiting, or no descriptor is left
                return
            made.setblocking(False)
            if len(self._connections) >= MOST_CONNECTIONS:
                silent = (one for one in self._connections.values() if not one.answer)
                self._drop(next(silent, next(iter(self._connections.values()))))
            connection = _Connection(made, time.monotonic() + SPEAKS_WITHIN_S)
            self._connections[made.fileno()] = connection
            self._selector.register(made, selectors.EVENT_READ)

    def _go_on(self, connection: _Connection) -> None:
        try:
            if not connection.answer:
                self._hear(connection)
            if connection.answer:
                connection.answer = connection.answer[connection.socket.send(connection.answer) :]
                if not connection.answer:
                    connection.socket.shutdown(socket.SHUT_WR)
                    self._drop(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)

    def _hear(self, connection: _Connection) -> None:
        raw = connection.socket.recv(LONGEST_REQUEST_BYTES)
        connection.said += raw
        if not raw or len(connection.said) > LONGEST_REQUEST_BYTES:
            self._drop(connection)
        elif b"\r\n\r\n" in connection.said:
            connection.answer = memoryview(self._answer(connection.said))
            connection.until_s = time.monotonic() + READS_WITHIN_S
            self._selector.modify(connection.socket, selectors.EVENT_WRITE)

    def _answer(self, request: bytes) -> bytes:
        head, *lines = request.decode("latin-1").split("\r\n")
        method, _, rest = head.partition(" ")
        accept = (line[7:].strip() for line in lines if line.lower().startswith("accept:"))
        page = self._pages.get(rest.split(" ")[0].partition("?")[0])
        if method not in {"GET", "HEAD"}:
            found = _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        elif page is None:
            found = _plain(HTTPStatus.NOT_FOUND)
        else:
            try:
                found = page(next(accept, ""))
            except Exception as error:  # noqa: BLE001 - a failing page must not stop the others
                found = _plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        words = (
            f"HTTP/1.1 {found.status.value} {found.status.phrase}",
            f"Content-Type: {found.kind}",
            f"Content-Length: {len(found.body)}",
            "Connection: close",
        )
        return "\r\n".join((*words, "", "")).encode() + (b"" if method == "HEAD" else found.body)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.socket.fileno(), None) is not None:
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _plain(status: HTTPStatus, text: str = "") -> Page:
    return Page(status, "text/plain", f"{text or status.phrase}\n".encode())


def _is_taken(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _IN_USE
