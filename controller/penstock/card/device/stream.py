"""`Stream`: what the program tells its cards, in one order for all of them."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, TypeVar

from penstock.card.device.buffer import dead
from penstock.card.device.errors import failure_error, request_error
from penstock.card.frames import (
    FREE,
    MOST_PART_BYTES,
    Kind,
    pack_calls,
    pack_numbers,
    pack_poison,
    pack_range,
    pack_upload,
    unpack_numbers,
    upload_frames,
)
from penstock.card.link import CardError, OperationError
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.card.cards import Cards
    from penstock.card.device.journal import Bodies
    from penstock.card.device.recovery import Recovery
    from penstock.card.layout import Split
    from penstock.card.link import CardLink, Reply
    from penstock_api.v1.card_ops_pb2 import Failure, Operation

    Request = tuple[int, Kind, bytes]  # to which card, by its place

_T = TypeVar("_T")

# A frame to each card costs as much as some calls, and cards that wait for one are idle.
CALLS_AT_ONCE = 16  # in one frame, unless frames follow each other faster than
FRAME_S = 0.0005
MOST_CALLS = 512
TAIL_S = 0.001  # after this time without a new call, those that wait are sent


class Stream:
    """The calls on their way to all cards.

    `lock` is held while a call is appended: backward runs in threads of its own. Whoever appends
    to `numbers` and `reals` holds it.

    Attributes:
        is_torn: Whether a call is being appended or sent. Who finds it set on taking the lock knows
            that the program was interrupted (Ctrl-C) in the middle of a call: some cards may have
            got it and others not, so that no card can be used any more.
        is_noted: Whether somebody sees that the calls in `numbers` are sent soon.
        waited_ns: How long the program has waited for answers.
        is_lost: Whether no other cards may take the place of these any more.
        recovery: What gives the program other cards for lost ones; None: nothing does.
        on_wait: Called after an upload or a wait with its name, its start and the bytes.
    """

    on_wait: Callable[[str, int, int], None] | None = None
    recovery: Recovery | None = None
    is_lost = False

    def __init__(self, cards: Cards) -> None:
        self.lock = threading.RLock()
        self._forgotten: list[int] = []
        self.take(cards)
        self.is_torn = False
        self.is_noted = False
        self.waited_ns = 0
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
        if not self.is_noted:
            self.is_noted = True
            self._has_calls.set()
        elif self.calls >= MOST_CALLS or time.monotonic() - self._flushed_s > FRAME_S:
            self.flush()

    def flush(self) -> None:
        """Sends what waits, to all cards: none may wait for another whose calls are still here."""
        with self.lock:
            while dead:
                self.numbers += (FREE, dead.popleft())
            if not self.numbers and not self._forgotten:
                return
            body = pack_calls(self.numbers, self.reals)
            with self.whole():
                self.numbers, self.reals, self.calls, self.is_noted = [], [], 0, False
                self._flushed_s = time.monotonic()
                self._send_all(Kind.RUN, body)
                if self._forgotten:
                    forgotten, self._forgotten = self._forgotten, []
                    self._send_all(Kind.FORGET, pack_numbers(forgotten))
            self._wait_for_room()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """What is done inside is done for all cards, or none can be used afterwards."""
        was_torn, self.is_torn = self.is_torn, True
        yield
        self.is_torn = was_torn

    def _wait_for_room(self) -> None:
        """Waits while much is on its way to a card; only then may the program be interrupted."""
        if self.is_torn:
            return
        try:
            for link in self.links:
                link.wait_for_room()
        except CardError as error:
            self._replace(error, self.links)

    def _send_tails(self) -> None:
        """Sends calls after which the program does something else than calling."""
        while True:
            self._has_calls.wait()
            self._has_calls.clear()
            if self._is_closed:
                return
            time.sleep(TAIL_S)
            # The next call raises it; at the end of the program, nothing can be started any more.
            with self.lock, contextlib.suppress(PenstockError, RuntimeError):
                if not self.is_torn:
                    self.flush()
                    if self.recovery is not None:
                        self.recovery.between_calls()

    def _close(self) -> None:
        self._is_closed = True
        self._has_calls.set()

    def define(self, messages: Sequence[Operation]) -> int:
        """Tells each card how it is to call one operation, and returns the operation's number."""
        with self.lock:
            self.flush()
            self._operations += 1
            for message in messages:
                message.number = self._operations
            with self.whole():
                self._send(Kind.DEFINE, [(one.SerializeToString(),) for one in messages])
            return self._operations

    def forget(self, operations: Iterable[int]) -> None:
        """Lets the cards forget operations after all calls so far; no later call names them.

        The next flush sends the numbers to the cards.
        """
        with self.lock:
            self._forgotten += operations

    def upload(self, number: int, parts: Sequence[memoryview]) -> None:
        """Makes a buffer of these bytes; each card has a part of its own."""
        began_ns = time.monotonic_ns()
        with self.lock:
            self.check()
            self.flush()
            with self.whole():
                # Parts of unlike lengths may have unlike numbers of frames.
                for frames in zip_longest(*(upload_frames(number, part) for part in parts)):
                    for kind in dict.fromkeys(one[0] for one in frames if one is not None):
                        bodies = [one[1] if one is not None and one[0] == kind else None
                                  for one in frames]  # fmt: skip
                        self._send(kind, bodies)
            self._wait_for_room()
        if self.on_wait is not None:
            self.on_wait("upload", began_ns, sum(map(len, parts)))

    def allocate(self, number: int, sizes_bytes: Sequence[int]) -> None:
        """Makes a buffer with undefined content, of a size for each card."""
        with self.lock:
            self.flush()
            with self.whole():
                self._send(Kind.ALLOCATE, [(pack_upload(number, one),) for one in sizes_bytes])

    def download(self, number: int, split: Split | None, first: int, end: int) -> bytearray:
        """Bytes `first` to `end` of a buffer, from the cards that have them.

        Raises:
            CardError: a card is lost.
            RuntimeError: the content is missing, as an operation has failed.
        """
        bounds = split.bounds if split is not None else (0, end)
        ranges = [
            (card, low, start, min(end, high, start + MOST_PART_BYTES))
            for card, (low, high) in enumerate(pairwise(bounds))
            for start in range(max(first, low), min(end, high), MOST_PART_BYTES)
        ]
        requests = [
            (card, Kind.DOWNLOAD, pack_range(number, start - low, stop - low))
            for card, low, start, stop in ranges
        ]
        content = bytearray(end - first)
        for (_, _, start, stop), part in zip(ranges, self._results(requests), strict=True):
            content[start - first : stop - first] = part
        return content

    def ask(self, kind: Kind, body: bytes = b"") -> list[memoryview]:
        """The answers of all cards to one request. Raises as `download`."""
        return self._results(self._of_all(kind, body))

    def compute(self, body: bytes) -> list[memoryview]:
        """The answers of all cards to COMPUTE, a call that also makes buffers.

        The caller holds the lock.

        Raises:
            CardError: a card is lost.
            RuntimeError: the operation has failed.
        """
        answers = self.ask(Kind.COMPUTE, body)
        if self.recovery is not None:
            self.recovery.note(Kind.COMPUTE, [(body,) for _ in self.links])
        return answers

    def begin(self, kind: Kind, body: bytes = b"") -> list[Reply]:
        """Asks all cards, and does not wait for their answers. Raises `CardError`."""
        with self.lock:
            return self._retried(lambda: self._begin(self._of_all(kind, body)))

    def begin_downloads(self, requests: Sequence[tuple[int, bytes]]) -> list[Reply]:
        """Asks cards, by their places, for bytes of buffers after all calls so far.

        Raises:
            CardError: a card is lost. No other takes its place.
        """
        with self.lock:
            return self._begin([(card, Kind.DOWNLOAD, body) for card, body in requests])

    def _of_all(self, kind: Kind, body: bytes) -> list[Request]:
        return [(card, kind, body) for card in range(len(self.links))]

    def _begin(self, requests: Sequence[Request]) -> list[Reply]:
        self.flush()
        return [self.links[card].request(kind, body) for card, kind, body in requests]

    def poisoned(self) -> set[int]:
        """The buffers that are missing. Raises as `download`."""
        return {one for body in self.ask(Kind.POISONED) for one in unpack_numbers(body)}

    def take(self, cards: Cards) -> None:
        """Goes on with other cards, which have all buffers and know no operation yet."""
        self.replace(cards)
        self._forgotten = []

    def replace(self, cards: Cards) -> None:
        """Goes on with other cards, which have done all that the former ones were told."""
        self.links = [one.link for one in cards.cards]
        self.failures = cards.failures

    @property
    def may_go_on(self) -> bool:
        """Whether other cards take the place of lost ones."""
        return self.recovery is not None and not self.is_lost

    def check(self) -> None:
        """Passes on what has failed on a card, if the program was not told yet.

        Raises:
            CardError: a card is lost.
            torch.OutOfMemoryError: an operation needed more memory than a card has.
            RuntimeError: an operation has failed on a card.
        """
        if self.failures.is_set or self.is_torn:
            self.raise_failure()

    def raise_failure(self) -> None:
        """Sees that what is missing on one card is missing on all, and raises why (`check`)."""
        cause = self.settle()
        if cause is not None:
            raise failure_error(*cause)

    def settle(self) -> tuple[str, Failure] | None:
        """Sees that what is missing on one card is missing on all, and returns why, if something.

        Raises:
            CardError: a card is lost.
        """
        with self.lock:
            if self.is_torn:
                self.is_lost = True
                for link in self.links:
                    link.lose("the program was interrupted in the middle of an operation")
                self.is_torn = False
            requests = self._of_all(Kind.POISONED, b"")
            answers = self._retried(lambda: self._answers(self._begin(requests)))
            poisoned = {one for body in answers for one in unpack_numbers(body)}
            if poisoned:
                self._send_all(Kind.POISON, pack_poison(dict.fromkeys(sorted(poisoned), -1)))
            # Each card has reported what failed before it answered.
            return self.failures.take()

    def end(self, error: CardError) -> None:
        """Ends the cards for good: each further use raises the error."""
        self.is_lost = True
        self._abort(error)  # who waits for a card has the lock
        with self.lock:
            self._abort(error)  # those that were being started

    def _abort(self, error: CardError) -> None:
        self.failures.lose(error)
        for link in self.links:
            link.abort()

    def _send_all(self, kind: Kind, body: bytes) -> None:
        self._send(kind, [(body,)] * len(self.links))

    def _send(self, kind: Kind, bodies: Bodies) -> None:
        """Posts a frame to each card, or sees that cards in their place have got it.

        Raises:
            CardError: a card is lost, and no other takes its place.
        """
        links = self.links
        if self.recovery is not None:
            self.recovery.note(kind, bodies)
        try:
            for link, parts in zip(links, bodies, strict=True):
                if parts is not None:
                    link.post(kind, *parts, waits=False)
        except CardError as error:
            self._replace(error, links)

    def _replace(self, error: CardError, links: Sequence[CardLink]) -> None:
        """Goes on with cards in the place of those of `links`, one of which is lost.

        Raises:
            CardError: why that is not possible.
        """
        with self.lock:
            if self.links is not links:  # another thread has done it
                return
            lost = self._lost(error)
            if self.recovery is None or not self.may_go_on:
                raise lost from None
            self.recovery.replace_lost(lost)

    def _retried(self, ask: Callable[[], _T]) -> _T:
        """What `ask` returns; it asks again if other cards took the place of lost ones."""
        while True:
            links = self.links
            try:
                return ask()
            except CardError as error:
                self._replace(error, links)

    def _lost(self, error: CardError) -> CardError:
        """The error of the card that was lost first: the others were ended because of it."""
        return error if self.failures.lost is None else self.failures.lost.again()

    def _answers(self, replies: Sequence[Reply]) -> list[memoryview]:
        began_ns = time.monotonic_ns()
        try:
            return [reply.result() for reply in replies]
        finally:
            self.waited_ns += time.monotonic_ns() - began_ns
            if self.on_wait is not None:
                self.on_wait("waits for the cards", began_ns, 0)

    def _results(self, requests: Sequence[Request]) -> list[memoryview]:
        """The answers, if nothing has failed on the way to them."""

        def ask() -> list[memoryview]:
            with self.lock:
                self.check()
                replies = self._begin(requests)
            return self._answers(replies)

        try:
            answers = self._retried(ask)
        except OperationError as error:
            self.check()
            raise request_error(error) from None
        self.check()
        return answers
