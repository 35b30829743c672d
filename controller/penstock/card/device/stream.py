"""`Stream`: what the program tells its cards, in one order for all of them."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Protocol

from penstock.card.device.buffer import dead
from penstock.card.frames import FREE, Kind, pack_calls, pack_range, pack_upload
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.layout import Split
    from penstock_api.v1.card_ops_pb2 import Operation

# A frame to each card costs as much as some calls, and cards that wait for one are idle.
CALLS_AT_ONCE = 16  # in one frame, unless frames follow each other faster than
FRAME_S = 0.0005
MOST_CALLS = 512
TAIL_S = 0.001  # after this time without a new call, those that wait are sent


class Reply(Protocol):
    """The answer to a request, which may not be there yet."""

    def result(self) -> memoryview:
        """Waits for it. Raises `CardError`."""


class Link(Protocol):
    """The connection to one card (`penstock.card.link.CardLink`)."""

    @property
    def worker(self) -> object:
        """What the card is, in words."""

    def post(self, kind: int, *parts: bytes | memoryview) -> None:
        """Sends a frame some time. Raises `CardError` if the card is gone."""

    def request(self, kind: int, *parts: bytes | memoryview) -> Reply:
        """Sends a frame that has an answer. Raises `CardError`."""


class Stream:
    """The calls on their way to all cards.

    `lock` is held while a call is appended: backward runs in threads of its own. Whoever appends
    to `numbers` and `reals` holds it.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self.lock = threading.RLock()
        self.links = links
        self.numbers: list[int] = []
        self.reals: list[float] = []
        self.calls = 0  # in `numbers`
        self._operations = FREE
        self._has_calls = threading.Event()
        self._is_closed = False
        self._flushed_s = 0.0
        threading.Thread(target=self._send_tails, name="penstock-tail", daemon=True).start()
        atexit.register(self._close)

    def appended(self) -> None:
        """Sends the calls if there are many, and otherwise sees that they do not wait for long.

        Who appends a call counts it in `calls` first.
        """
        if self.calls == 1:
            self._has_calls.set()
        elif self.calls >= MOST_CALLS or time.monotonic() - self._flushed_s > FRAME_S:
            self.flush()

    def flush(self) -> None:
        """Sends what waits, to all cards: none may wait for another whose calls are still here."""
        with self.lock:
            while dead:
                self.numbers += (FREE, dead.popleft())
            if not self.numbers:
                return
            body = pack_calls(self.numbers, self.reals)
            self.numbers, self.reals, self.calls = [], [], 0
            self._flushed_s = time.monotonic()
            for link in self.links:
                link.post(Kind.RUN, body)

    def _send_tails(self) -> None:
        """Sends calls after which the program does something else than calling."""
        while True:
            self._has_calls.wait()
            self._has_calls.clear()
            if self._is_closed:
                return
            time.sleep(TAIL_S)
            with contextlib.suppress(PenstockError):  # the next call raises it
                self.flush()

    def _close(self) -> None:
        self._is_closed = True
        self._has_calls.set()

    def define(self, messages: Sequence[Operation]) -> int:
        """Tells each card how it is to call one operation, and returns the operation's number."""
        with self.lock:
            self.flush()
            self._operations += 1
            for link, message in zip(self.links, messages, strict=True):
                message.number = self._operations
                link.post(Kind.DEFINE, message.SerializeToString())
            return self._operations

    def upload(self, number: int, parts: Sequence[memoryview]) -> None:
        """Makes a buffer of these bytes; each card has a part of its own."""
        with self.lock:
            self.flush()
            for link, part in zip(self.links, parts, strict=True):
                link.post(Kind.UPLOAD, pack_upload(number, len(part)), part)

    def allocate(self, number: int, sizes_bytes: Sequence[int]) -> None:
        """Makes a buffer with undefined content, of a size for each card."""
        with self.lock:
            self.flush()
            for link, size_bytes in zip(self.links, sizes_bytes, strict=True):
                link.post(Kind.ALLOCATE, pack_upload(number, size_bytes))

    def download(self, number: int, split: Split | None, first: int, end: int) -> bytearray:
        """Bytes `first` to `end` of a buffer, from the cards that have them. Raises `CardError`."""
        bounds = split.bounds if split is not None else (0, end)
        with self.lock:
            self.flush()
            replies = []
            for link, low, high in zip(self.links, bounds, bounds[1:], strict=False):
                start, stop = max(first, low), min(end, high)
                if start < stop:
                    body = pack_range(number, start - low, stop - low)
                    replies.append((start, stop, link.request(Kind.DOWNLOAD, body)))
        content = bytearray(end - first)
        for start, stop, reply in replies:
            content[start - first : stop - first] = reply.result()
        return content

    def ask(self, kind: Kind, body: bytes = b"") -> list[memoryview]:
        """The answers of all cards to one request. Raises `CardError`."""
        with self.lock:
            self.flush()
            replies = [link.request(kind, body) for link in self.links]
        return [reply.result() for reply in replies]
