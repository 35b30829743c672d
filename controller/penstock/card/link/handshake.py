"""Handshake: both sides agree on a version, and each proves that it knows the application's token.

Neither side sends the token: a proof is an HMAC over both hellos, each of which has a new nonce. So
a proof cannot be used again, and a hello that was altered on its way is noticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from penstock import __version__
from penstock.card.link.errors import ProtocolError, RefusedError, Worker
from penstock.card.link.frame import GOODBYE, HELLO, PROOF, FrameDecoder, encode
from penstock_api.v1 import card_pb2 as pb

if TYPE_CHECKING:
    from penstock.card.link.agreement import Agreement
    from penstock.card.link.description import Description
    from penstock.card.link.stream import Stream

OLDEST_VERSION = NEWEST_VERSION = 1  # of the protocol
_NONCE_BYTES = 32
_MOST_BODY_BYTES = 4096  # before the other side has proved anything
_MOST_TEXT = 512  # characters
_M = TypeVar("_M", bound=Message)
_SIDES = {True: b"front-end", False: b"worker"}


@dataclass(frozen=True)
class Agreed:
    """What both sides know after the handshake. The decoder may hold bytes that came after it."""

    version: int
    worker: Worker  # as the worker described itself
    release: str  # of the other side
    decoder: FrameDecoder


def hello(agreement: Agreement, about: Description | None) -> pb.CardHello:
    """This process's hello; `about` is None for a front-end."""
    said = pb.CardHello(
        oldest_version=OLDEST_VERSION,
        newest_version=NEWEST_VERSION,
        release=__version__,
        application=agreement.application,
        nonce=secrets.token_bytes(_NONCE_BYTES),
    )
    if about is not None:
        said.pid = os.getpid()
        said.node, said.device = about.node, about.device
        said.torch_version = about.torch_version
    return said


def shake_hands(
    stream: Stream,
    agreement: Agreement,
    about: Description | None,
    timeout_s: float,
    memory: int | None = None,
) -> Agreed:
    """Agrees with the other side in `timeout_s`; `about` describes a worker, None: a front-end.

    `memory`: a front-end's descriptor of shared memory, which it sends with its proof.

    Raises:
        ProtocolError: the sides do not belong together; its text says which release each has.
        RefusedError: the other side said so, and why.
        TimeoutError: the other side is too slow.
        OSError: the stream is broken.
    """
    try:
        return _Handshake(stream, agreement, about, timeout_s).run(memory)
    except RefusedError:
        raise
    except ProtocolError as error:
        say_goodbye(stream, 0, str(error))
        raise


def say_goodbye(stream: Stream, version: int, reason: str) -> None:
    """Tells the other side why the connection ends, if it can be told without waiting."""
    body = pb.CardGoodbye(reason=reason, release=__version__)
    with contextlib.suppress(OSError):
        stream.send(encode(version, GOODBYE, 0, 0, [body.SerializeToString()]))


def goodbye_reason(body: memoryview) -> str:
    """What the other side said when it ended the connection; empty if nothing was wrong.

    Raises:
        ProtocolError: the body is none of a goodbye.
    """
    said = parsed(pb.CardGoodbye(), body)
    return _text(said.reason)


def parsed(message: _M, body: memoryview) -> _M:
    """The message, read from a body. Raises ProtocolError if it is none of this kind."""
    try:
        message.ParseFromString(bytes(body))
    except DecodeError as error:
        raise ProtocolError("the body of one of the link's own frames cannot be read") from error
    return message


def releases(other: str) -> str:
    """The releases of both sides, for the text of an error."""
    return f"this side is Penstock {__version__}, the other side Penstock {other}"


class _Handshake:
    def __init__(
        self, stream: Stream, agreement: Agreement, about: Description | None, timeout_s: float
    ) -> None:
        self._stream = stream
        self._agreement = agreement
        self._about = about
        self._deadline_s = time.monotonic() + timeout_s
        self._decoder = FrameDecoder(0, _MOST_BODY_BYTES)
        self._is_front_end = about is None

    def run(self, memory: int | None) -> Agreed:
        mine = hello(self._agreement, self._about)
        sent = mine.SerializeToString()
        self._send(HELLO, sent)
        received = self._receive(HELLO)
        theirs = parsed(pb.CardHello(), received)
        version = self._version(theirs)
        hellos = (sent, bytes(received)) if self._is_front_end else (bytes(received), sent)
        mac = self._proof(hellos, self._is_front_end)
        self._send(PROOF, pb.CardProof(mac=mac).SerializeToString(), memory)
        proof = parsed(pb.CardProof(), self._receive(PROOF)).mac
        if not hmac.compare_digest(proof, self._proof(hellos, not self._is_front_end)):
            raise ProtocolError("the other side does not know the application's token")
        worker = theirs if self._is_front_end else mine
        self._decoder.version = version
        return Agreed(version, _worker(worker), _text(theirs.release), self._decoder)

    def _version(self, theirs: pb.CardHello) -> int:
        """The newest version that both speak."""
        version = min(theirs.newest_version, NEWEST_VERSION)
        release = _text(theirs.release)
        if version < max(theirs.oldest_version, OLDEST_VERSION):
            raise ProtocolError(
                f"no version of the protocol is spoken by both sides: {releases(release)}"
            )
        if len(theirs.nonce) != _NONCE_BYTES:
            raise ProtocolError(f"the other side's hello has no nonce: {releases(release)}")
        if theirs.application != self._agreement.application:
            raise ProtocolError("the other side belongs to another application")
        return version

    def _proof(self, hellos: tuple[bytes, bytes], is_front_ends: bool) -> bytes:
        digests = b"".join(hashlib.sha256(one).digest() for one in hellos)
        said = _SIDES[is_front_ends] + b"\0" + digests
        return hmac.digest(self._agreement.token, said, "sha256")

    def _send(self, kind: int, body: bytes, descriptor: int | None = None) -> None:
        frame = b"".join(encode(0, kind, 0, 0, [body]))
        if descriptor is not None:
            sent = self._stream.send_descriptor(frame, descriptor)
        else:
            sent = self._stream.send([frame])
        if sent != len(frame):  # they always fit into the empty buffer of a new connection
            raise ProtocolError("the connection takes no bytes")

    def _receive(self, kind: int) -> memoryview:
        decoder = self._decoder
        while (frame := decoder.next()) is None:
            left_s = self._deadline_s - time.monotonic()
            count = self._stream.receive(decoder.room(), max(left_s, 0.0))
            if not count:
                raise ConnectionResetError("the other side ended the connection")
            decoder.filled(count)
        if frame.kind == GOODBYE:
            raise RefusedError(goodbye_reason(frame.body) or "the connection is not wanted")
        if frame.kind != kind or frame.flags or frame.number:
            raise ProtocolError(f"a frame of kind {frame.kind} came instead of kind {kind}")
        return frame.body


def _worker(said: pb.CardHello) -> Worker:
    return Worker(
        said.pid, _text(said.node), _text(said.device), _text(said.torch_version),
        _text(said.release),
    )  # fmt: skip


def _text(said: str) -> str:
    """What the other side wrote, without what a terminal would obey."""
    return "".join(one if one.isprintable() else "\ufffd" for one in said[:_MOST_TEXT])
