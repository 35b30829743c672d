"""Frames: what a link's stream of bytes consists of.

A frame is a header of fixed size and a body. All numbers are little-endian:

    magic 4 | version 2 | kind 2 | flags 2 | 0 2 | body's length 4 | request's number 8 | CRC-32 4

The CRC covers the header, so that no fault makes one request's reply another one's. The version is
0 until both sides have agreed on one. The number is 0 but for requests and their replies, which
have the kind and the number of the request.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from penstock.card.link.errors import ProtocolError
from penstock.card.link.settings import MOST_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Part = bytes | bytearray | memoryview
Buffers = list[bytes | memoryview]  # of a frame: its header and parts, or all in one

# The link's own kinds.
HELLO, PROOF, PING, PONG, GOODBYE, FAULT, USE_MEMORY, RELEASED = range(1, 9)
FIRST_KIND = 16  # of the link's user
LAST_KIND = 0xFFFF

REPLY, ERROR, EVENT, SHARED = 1, 2, 4, 8  # flags; SHARED: the body names a place in shared memory
_FLAGS = REPLY | ERROR | EVENT | SHARED

MAGIC = b"pskC"
_FIELDS = struct.Struct("<4sHHHHIQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size
JOINED_BYTES = 4096  # the parts of a frame up to this size are copied into one
_IN_PLACE_BYTES = 64 << 10  # longer bodies are received where they stay
_CHUNK_BYTES = 256 << 10


class Header(NamedTuple):
    """A frame's header, without what is the same in all headers."""

    kind: int
    flags: int
    length: int  # of the body
    number: int


class Frame(NamedTuple):
    """A received frame. The body is writable and belongs to whom the frame is given."""

    kind: int
    flags: int
    number: int
    body: memoryview
    slot: int | None = None  # of shared memory, where the body is and is read alone


def encode(version: int, kind: int, flags: int, number: int, parts: Sequence[Part]) -> Buffers:
    """A frame as buffers to send. Raises ValueError if the body is too long."""
    flat = [part if type(part) is bytes else _flat(part) for part in parts]
    length = sum(map(len, flat))
    if length > MOST_BODY_BYTES:
        raise ValueError(f"a frame's body may have {MOST_BODY_BYTES} bytes, this has {length}")
    fields = _FIELDS.pack(MAGIC, version, kind, flags, 0, length, number)
    header = fields + _CRC.pack(zlib.crc32(fields))
    if length <= JOINED_BYTES:
        return [b"".join((header, *flat))]
    return [header, *flat]


def elsewhere(header: bytes | memoryview, place: bytes) -> bytes:
    """The frame that takes the place of one with this header, whose body is at `place`."""
    _, version, kind, flags, _, _, number = _FIELDS.unpack_from(header)
    return b"".join(encode(version, kind, flags | SHARED, number, [place]))


def _flat(part: Part) -> bytes | memoryview:
    view = memoryview(part)
    return view.cast("B") if view.nbytes else b""


class FrameDecoder:
    """Takes a stream of bytes apart into frames.

    Received bytes are put into `room()` and announced by `filled`; `next` returns complete frames.
    `version`, `most_body_bytes` and `on_header` may be changed between frames. `on_header` is
    called before a body is received: it may refuse the frame, or choose the body's memory.
    """

    def __init__(self, version: int, most_body_bytes: int) -> None:
        self.version = version
        self.most_body_bytes = most_body_bytes
        self.on_header: Callable[[Header], memoryview | None] = lambda _: None
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._start = self._end = 0  # of the bytes in the chunk that are not taken apart
        self._header: Header | None = None  # of a body that is received in place
        self._body = self._chunk[:0]
        self._got = 0  # bytes of that body

    def room(self) -> memoryview:
        """Where the next bytes are to be put; never empty."""
        return self._chunk[self._end :] if self._header is None else self._body[self._got :]

    def filled(self, count: int) -> None:
        """So many bytes are in what `room` returned."""
        if self._header is None:
            self._end += count
        else:
            self._got += count

    def next(self) -> Frame | None:
        """The next frame, None until more has been received.

        Raises:
            ProtocolError: these bytes are no frame that is allowed here.
        """
        if self._header is not None:
            return self._received_in_place(self._header)
        if self._end - self._start < HEADER_BYTES:
            self._move_to_the_front()
            return None
        header = self._read_header()
        begin = self._start + HEADER_BYTES
        end = begin + header.length
        if end > self._end and header.length <= _IN_PLACE_BYTES:
            self._move_to_the_front()
            return None
        target = self.on_header(header)
        body = target if target is not None else memoryview(bytearray(header.length))
        if end <= self._end:
            body[:] = self._chunk[begin:end]
            self._start = end
            return Frame(header.kind, header.flags, header.number, body)
        self._header, self._body, self._got = header, body, self._end - begin
        body[: self._got] = self._chunk[begin : self._end]
        self._start = self._end = 0
        return None

    def _received_in_place(self, header: Header) -> Frame | None:
        if self._got < header.length:
            return None
        body, self._body, self._header = self._body, self._chunk[:0], None
        return Frame(header.kind, header.flags, header.number, body)

    def _read_header(self) -> Header:
        raw = self._chunk[self._start : self._start + HEADER_BYTES]
        magic, version, kind, flags, zero, length, number = _FIELDS.unpack_from(raw)
        if (
            magic != MAGIC
            or zlib.crc32(raw[: _FIELDS.size]) != _CRC.unpack_from(raw, _FIELDS.size)[0]
        ):
            raise ProtocolError("these bytes are no frame of Penstock")
        if version != self.version:
            raise ProtocolError(f"a frame has version {version}, not {self.version}")
        if zero or flags & ~_FLAGS:
            raise ProtocolError(f"a frame of kind {kind} has unknown flags")
        if length > self.most_body_bytes:
            raise ProtocolError(
                f"a frame of kind {kind} has {length} bytes, at most {self.most_body_bytes} may be"
            )
        return Header(kind, flags, length, number)

    def _move_to_the_front(self) -> None:
        left = self._end - self._start
        if self._start:
            self._chunk[:left] = self._chunk[self._start : self._end]
            self._start, self._end = 0, left
