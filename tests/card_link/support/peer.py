"""A peer whose frames the test writes itself: older, newer, faulty or hostile."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import threading
import time

from tests.card_link.support.worker import KINDS

from penstock.card.link import Agreement, CardLink, Description, InheritedEndpoint, LinkSettings
from penstock.card.link.frame import GOODBYE, HELLO, PING, PONG, PROOF, Frame, FrameDecoder, encode
from penstock.card.link.handshake import hello
from penstock_api.v1 import card_pb2 as pb

MOST = 1 << 20


class Peer:
    """One end of a connection."""

    def __init__(self, connection: socket.socket, agreement: Agreement) -> None:
        self.connection = connection
        connection.settimeout(10)
        self.agreement = agreement
        self.decoder = FrameDecoder(0, MOST)
        self.version = 0

    def say(self, kind: int, body: bytes = b"", flags: int = 0, number: int = 0) -> None:
        self.connection.sendall(b"".join(encode(self.version, kind, flags, number, [body])))

    def hear(self, *, skips: int = PING) -> Frame:
        """The next frame that is not of the kind `skips`."""
        while True:
            while (frame := self.decoder.next()) is None:
                count = self.connection.recv_into(self.decoder.room())
                if not count:
                    raise EOFError
                self.decoder.filled(count)
            if frame.kind != skips:
                return frame

    def reason(self) -> str:
        """Why the other side ended the connection."""
        frame = self.hear()
        assert frame.kind == GOODBYE, frame
        return pb.CardGoodbye.FromString(bytes(frame.body)).reason

    def greet(self, about: Description | None = None, **changed: object) -> pb.CardHello:
        """Says hello, with some fields changed; returns the other side's hello."""
        said = hello(self.agreement, about)
        for name, value in changed.items():
            setattr(said, name, value)
        mine = said.SerializeToString()
        self.say(HELLO, mine)
        frame = self.hear()
        assert frame.kind == HELLO, frame
        theirs = bytes(frame.body)
        self.hellos = (mine, theirs) if about is None else (theirs, mine)
        return pb.CardHello.FromString(theirs)

    def prove(self, side: bytes, *descriptors: int) -> None:
        digests = b"".join(hashlib.sha256(one).digest() for one in self.hellos)
        mac = hmac.digest(self.agreement.token, side + b"\0" + digests, "sha256")
        frame = b"".join(encode(0, PROOF, 0, 0, [pb.CardProof(mac=mac).SerializeToString()]))
        for descriptor in descriptors:  # each with a byte
            socket.send_fds(self.connection, [frame[:1]], [descriptor])
            frame = frame[1:]
        self.connection.sendall(frame)
        assert self.hear().kind == PROOF
        self.version = self.decoder.version = 1

    def pong(self) -> None:
        self.say(PONG, pb.CardPong(number=1).SerializeToString())


def as_worker(act, settings: LinkSettings | None = None, **options) -> CardLink:
    """A link whose worker is a `Peer`; `act(peer)` runs in a thread after the handshake."""
    ours, theirs = socket.socketpair()
    agreement = Agreement("app", b"t" * 32)

    def run() -> None:
        # A test that ends its link ends this thread, too.
        with theirs, contextlib.suppress(EOFError, OSError):
            peer = Peer(theirs, agreement)
            peer.greet(Description("b", "gpu 0"), pid=4711)
            peer.prove(b"worker")
            act(peer)

    threading.Thread(target=run, daemon=True).start()
    settings = settings or LinkSettings(connect_s=10)
    return CardLink(
        "card 1", InheritedEndpoint(ours), agreement, kinds=KINDS, settings=settings, **options
    )


class dialled(Peer):  # noqa: N801 - reads as what it is in a `with`
    """A front-end whose frames the test writes."""

    def __init__(self, path, agreement: Agreement) -> None:
        connection = socket.socket(socket.AF_UNIX)
        deadline_s = time.monotonic() + 10
        while connection.connect_ex(str(path)):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        super().__init__(connection, agreement)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
