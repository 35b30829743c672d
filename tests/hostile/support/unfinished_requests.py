"""Starts requests that never end: python unfinished_requests.py UID SOCKET CONNECTIONS CALLS BYTES.

It writes HTTP/2 itself (RFC 9113), since no client library leaves a message half sent. It prints
"ready" when the server has taken no more for two seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import threading
import time

uid, path, connections, calls, size = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS = 1, 4
FIRST_WINDOW, PIECE = 65535, 16384


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def header(name: bytes, value: bytes) -> bytes:
    """A literal field without indexing (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


FIELDS = b"".join(
    header(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/penstock_api.v1.Agent/Grant"),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)


class Connection:
    """Sends as much of each call's message as the window of the connection allows."""

    sent_s = time.monotonic()  # last, of all of them

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))
        self.window = FIRST_WINDOW
        self.had = b""

    def hear(self, within_s: float) -> None:
        """Answers settings and pings, and notes window updates."""
        if select.select([self.socket], [], [], within_s)[0]:
            self.had += self.socket.recv(1 << 16)
        while len(self.had) >= 9:
            length = int.from_bytes(self.had[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", self.had[3:9])
            if len(self.had) < 9 + length:
                return
            content, self.had = self.had[9 : 9 + length], self.had[9 + length :]
            if kind in (SETTINGS, PING) and not flags & ACK:
                answer = content if kind == PING else b""
                self.socket.sendall(frame(kind, ACK, 0, answer))
            if kind == WINDOW_UPDATE and stream == 0:
                self.window += int.from_bytes(content, "big")

    def begin_calls(self) -> None:
        self.hear(1)
        for number in range(calls):
            self.socket.sendall(frame(HEADERS, END_HEADERS, 2 * number + 1, FIELDS))
            message = b"\0" + struct.pack(">I", size + 1) + b"\n" * size  # a byte is missing
            for at in range(0, len(message), PIECE):
                piece = message[at : at + PIECE]
                while self.window < len(piece):
                    self.hear(1)
                self.window -= len(piece)
                self.socket.sendall(frame(DATA, 0, 2 * number + 1, piece))
                Connection.sent_s = time.monotonic()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            self.begin_calls()
        while True:
            with contextlib.suppress(OSError):
                self.hear(1)
            time.sleep(0.1)


os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
for _ in range(connections):
    threading.Thread(target=Connection().run, daemon=True).start()
while time.monotonic() - Connection.sent_s < 2:
    time.sleep(0.1)
print("ready", flush=True)
time.sleep(600)
