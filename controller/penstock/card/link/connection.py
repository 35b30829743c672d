"""Connection: the worker's side of a link, after the handshake."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.card.link.frame import EVENT, GOODBYE, USE_MEMORY, Part, encode
from penstock.card.link.send_queue import SendQueue
from penstock.card.link.settings import MOST_BODY_BYTES
from penstock.card.link.shared_memory import SlotReader
from penstock.card.link.stream import PlainStream
from penstock_api.v1 import card_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.link.frame import Buffers
    from penstock.card.link.handshake import Agreed
    from penstock.card.link.stream import Stream


class Connection:
    """A connection whose front-end has proved that it belongs to the application.

    `serve` must soon be called with it: nobody answers pings before.
    """

    def __init__(self, stream: Stream, agreed: Agreed) -> None:
        self.stream = stream
        self.decoder = agreed.decoder
        self.release = agreed.release  # of the front-end
        self.decoder.most_body_bytes = MOST_BODY_BYTES
        self._version = agreed.version
        self._queue = SendQueue(stream, 0)
        if isinstance(stream, PlainStream):
            stream.takes_descriptor = False  # the program's came in the handshake, or never comes

    def take_memory(self, *, wanted: bool) -> SlotReader | None:
        """The program's shared memory, which it then uses; None if there is none, or unwanted.

        Raises:
            ProtocolError: it is not as it must be.
        """
        descriptor, self.stream.descriptor = self.stream.descriptor, None
        if descriptor is None:
            return None
        if not wanted:
            os.close(descriptor)
            return None
        try:
            slots = SlotReader(descriptor)
            self.send(self.encode(USE_MEMORY, 0, 0, ()))
        except OSError:  # without it, or without the front-end, which the reader notices
            return None
        return slots

    def send_event(self, kind: int, *parts: Part) -> None:
        """Sends a notice that no request asked for. Any thread may call it.

        It may wait until the front-end reads. When the front-end is gone, nothing is sent.

        Raises:
            ValueError: the body is longer than `MOST_BODY_BYTES`.
        """
        with contextlib.suppress(OSError):
            self.send(self.encode(kind, EVENT, 0, parts))

    def encode(self, kind: int, flags: int, number: int, parts: Sequence[Part]) -> Buffers:
        """A frame to send. Raises ValueError if the body is too long."""
        return encode(self._version, kind, flags, number, parts)

    def send(self, frame: Buffers) -> None:
        """Sends a frame and waits until it is written, so that its parts may change again.

        Raises:
            OSError: the front-end is gone.
        """
        self._queue.put(frame)
        self._queue.write()

    def send_soon(self, kind: int, body: bytes) -> None:
        """Sends a small frame before all others; leaves it to a thread that is just writing.

        Raises:
            OSError: the front-end is gone.
        """
        self._queue.put_urgent(b"".join(self.encode(kind, 0, 0, [body])))
        self._queue.write_or_leave()

    def say_goodbye(self, reason: str) -> None:
        """Tells the front-end why the connection ends, if it can still be told."""
        said = pb.CardGoodbye(reason=reason, release=__version__)
        with contextlib.suppress(OSError):
            self.send_soon(GOODBYE, said.SerializeToString())
