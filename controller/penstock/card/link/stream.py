"""Streams: the bytes of a connection, over a plain socket or over TLS."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import ssl
import struct
import threading
from itertools import chain
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BUFFERS = 512  # of one call; the kernel takes 1,024
_RECORD_BYTES = 16 << 10  # of TLS: small buffers are joined up to this


class Stream(Protocol):
    """One thread may send while another receives. All methods raise OSError if it is broken."""

    is_remote: bool  # whether the other side may go away without the kernel telling
    descriptor: int | None  # of shared memory, once it was received; the caller closes it

    def send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Sends as much as is possible without waiting; returns how many bytes.

        After a call that sent nothing the next call must have the same buffers: OpenSSL demands to
        see the same bytes again.
        """

    def send_descriptor(self, frame: bytes, descriptor: int) -> int:
        """Sends a small frame and a descriptor with it, which only a local stream can."""

    def wait_writable(self) -> None:
        """Waits until `send` can send more, or the stream is broken."""

    def receive(self, room: memoryview, timeout_s: float | None = None) -> int:
        """Receives at least a byte; 0 at the end. Raises TimeoutError if none has come in time."""

    def has_unread(self) -> bool:
        """Whether bytes, or the end, have arrived that were not received yet."""

    def shut(self) -> None:
        """Ends the connection for both sides and wakes threads that wait. May be called again."""

    def close(self) -> None:
        """Closes this process's descriptor and nothing else."""


def _is_ready(connection: socket.socket, events: int, timeout_s: float | None) -> bool:
    descriptor = connection.fileno()
    if descriptor < 0:
        return True  # closed: the next call says so
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(None if timeout_s is None else max(timeout_s, 0.0) * 1000))


class PlainStream:
    """A connected stream socket."""

    def __init__(self, connection: socket.socket, *, takes_descriptor: bool = False) -> None:
        connection.settimeout(None)
        self._socket = connection
        self._timeout_s: float | None = None
        self.is_remote = False
        self.takes_descriptor = takes_descriptor  # of shared memory; further ones are closed
        self.descriptor: int | None = None

    def send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """See `Stream`."""
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            return self._socket.sendmsg(buffers[:MOST_BUFFERS], (), flags)
        except BlockingIOError:
            return 0

    def wait_writable(self) -> None:
        """See `Stream`."""
        _is_ready(self._socket, select.POLLOUT, None)

    def receive(self, room: memoryview, timeout_s: float | None = None) -> int:
        """See `Stream`. Raises TimeoutError if no byte has come in time."""
        if timeout_s != self._timeout_s:
            self._set_timeout(timeout_s)
        try:
            if not self.takes_descriptor:
                return self._socket.recv_into(room)
            return self._receive_with_descriptor(room)
        except BlockingIOError:
            raise TimeoutError from None

    def send_descriptor(self, frame: bytes, descriptor: int) -> int:
        """See `Stream`."""
        return socket.send_fds(self._socket, [frame], [descriptor])

    def _receive_with_descriptor(self, room: memoryview) -> int:
        # The kernel closes descriptors for which there is no space.
        space = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
        count, ancillary, _, _ = self._socket.recvmsg_into([room], space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for one in array.array("i", data[: len(data) // 4 * 4]):
                    if self.descriptor is None:
                        self.descriptor = one
                    else:
                        os.close(one)
        return count

    def _set_timeout(self, timeout_s: float | None) -> None:
        """Lets the kernel keep the time: a call less for each receive."""
        usec = 0 if timeout_s is None else max(int(timeout_s * 1e6), 1)  # 0: for ever
        value = struct.pack("@ll", *divmod(usec, 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._timeout_s = timeout_s

    def has_unread(self) -> bool:
        """See `Stream`."""
        return _is_ready(self._socket, select.POLLIN, 0)

    def shut(self) -> None:
        """See `Stream`."""
        # Python's method for TLS sockets would also make the reader take encrypted bytes for data.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """See `Stream`."""
        self._socket.close()


class TlsStream(PlainStream):
    """A TLS connection after its handshake.

    OpenSSL lets only one thread at a time use a connection. So the socket does not block, a lock
    guards each call, and threads wait for the socket outside of the lock.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        super().__init__(connection)
        connection.setblocking(False)
        self._tls = connection
        self._lock = threading.Lock()
        self.is_remote = True

    def send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """See `Stream`."""
        record = _record(buffers)
        with self._lock:
            try:
                return self._tls.send(record)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return 0

    def receive(self, room: memoryview, timeout_s: float | None = None) -> int:
        """See `Stream`. Raises TimeoutError if no byte has come in time."""
        while True:
            with self._lock:
                try:
                    return self._tls.recv_into(room)
                except ssl.SSLWantReadError:
                    events = select.POLLIN
                except ssl.SSLWantWriteError:
                    events = select.POLLOUT
                except ssl.SSLEOFError:  # the connection ended without TLS's own goodbye
                    return 0
            if not _is_ready(self._tls, events, timeout_s):
                raise TimeoutError


def _record(buffers: Sequence[bytes | memoryview]) -> bytes | memoryview:
    """The bytes for one call of OpenSSL: a large buffer as it is, small ones joined."""
    if len(buffers) == 1 or len(buffers[0]) >= _RECORD_BYTES:
        return buffers[0]
    size, count = 0, 0
    for one in buffers:
        size += len(one)
        count += 1
        if size >= _RECORD_BYTES:
            break
    return b"".join(chain(buffers[:count]))
