"""Tracing: what the program and all of its cards do, in one file for Perfetto."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.card.device.kernel import Kernel
from penstock.card.device.warn import warn
from penstock.card.frames import Kind, pack_trace, unpack_clock
from penstock.card.names import TRACE_VARIABLE
from penstock.card.trace_file import Event, TraceFile
from penstock.model import PenstockError
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.card.cards import Cards
    from penstock.card.device.session import Session
    from penstock.card.link import CardLink

PROGRAM = 1  # the process of the program in the file; cards have the next numbers
TRACKS = {1: "operations", 2: "waits and exchanges"}  # of a card
END_S = 5.0  # for what the cards still have to say at the end
_ROUNDS = 5  # of questions for the time: the shortest one counts
_lock = threading.Lock()
_running: Trace | None = None
_plain_call = Kernel.__call__


def _traced_call(kernel: Kernel, *args: Any, **kwargs: Any) -> object:
    began_ns = time.monotonic_ns()
    try:
        return _plain_call(kernel, *args, **kwargs)
    finally:
        if _running is not None:
            _running.called(kernel.name, began_ns)


CALL_CODE = _traced_call.__code__


@contextlib.contextmanager
def traced(file: str | Path) -> Iterator[None]:
    """See `penstock.card.trace`."""
    from penstock.card.device import start

    start.start()
    trace = Trace(start.session(), file)
    try:
        yield
    finally:
        trace.end()


def trace_from_environment(session: Session) -> None:
    """Begins a trace if the environment names a file; it ends with the program."""
    file = os.environ.get(TRACE_VARIABLE)
    if not file:
        return
    try:
        trace = Trace(session, file.replace("%p", str(os.getpid())))
    except PenstockError as error:
        warn(f"${TRACE_VARIABLE}: {error}")
        return
    atexit.register(trace.end)


class Trace:
    """A trace that is being taken. A program has one at a time.

    While it is taken, each call of a kernel goes through `_traced_call`; at other times a call
    costs nothing more.
    """

    def __init__(self, session: Session, file: str | Path) -> None:
        """Begins. Raises `PenstockError`."""
        global _running  # noqa: PLW0603 - a program has one
        with _lock:
            if _running is not None:
                raise PenstockError(
                    f"no trace can be taken to {file}", "the program is taking one already",
                    f"end that first; ${TRACE_VARIABLE} takes one of the whole program",
                )  # fmt: skip
            self._session = session
            self._pid = os.getpid()
            self._file = TraceFile(file, time.monotonic_ns())
            self._file.on_problem = self._on_problem
            self._file.on_period = self._follow
            self._threads: dict[int, int] = {}
            self._next_process = PROGRAM + 1
            self._cards: Cards | None = None
            self._file.name_process(PROGRAM, "program")
            _running = self
        Kernel.__call__ = _traced_call  # type: ignore[method-assign, assignment]
        session.stream.on_wait = self._waited
        try:
            self._take_cards()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Ends the trace; the file is complete afterwards."""
        global _running  # noqa: PLW0603 - a program has one
        with _lock:
            if _running is not self or os.getpid() != self._pid:
                return
            _running = None
        Kernel.__call__ = _plain_call  # type: ignore[method-assign]
        self._session.stream.on_wait = None
        # A program that was interrupted may end while its cards wait for each other.
        if self._session.stream.lock.acquire(timeout=END_S):
            try:
                with contextlib.suppress(PenstockError):
                    self._order(END_S, is_on=False)
            finally:
                self._session.stream.lock.release()
        self._file.close()
        if self._file.left_out:
            warn(f"the trace lacks {self._file.left_out} events, which came faster than they "
                 "could be written: trace fewer steps")  # fmt: skip

    def called(self, name: str, began_ns: int) -> None:
        """The program has called an operation."""
        self._add(name, began_ns, 0)

    def _waited(self, what: str, began_ns: int, size_bytes: int) -> None:
        self._add(what, began_ns, size_bytes)

    def _add(self, name: str, began_ns: int, size_bytes: int) -> None:
        thread = threading.get_ident()
        track = self._threads.get(thread)
        if track is None:
            track = self._threads[thread] = len(self._threads) + 1
            self._file.name_track(PROGRAM, track, threading.current_thread().name)
        duration_ns = time.monotonic_ns() - began_ns
        self._file.add(Event(PROGRAM, track, name, began_ns, duration_ns, size_bytes))

    def _on_problem(self, text: str) -> None:
        """The file's thread can write no more. The program goes on."""
        warn(text)
        threading.Thread(target=self.end, name="penstock-trace-end", daemon=True).start()

    def _follow(self) -> None:
        """The program may have moved to other cards."""
        if self._session.cards is not self._cards:
            with contextlib.suppress(PenstockError):
                self._take_cards()

    def _take_cards(self) -> None:
        """Begins the trace on the cards. Raises `CardError`."""
        cards = self._cards = self._session.cards
        first = self._next_process
        self._next_process += len(cards.cards)
        for i, one in enumerate(cards.cards):
            self._file.name_process(first + i, f"card {i}: {one.link.worker}")
            for track, name in TRACKS.items():
                self._file.name_track(first + i, track, name)
        offsets_ns = self._order(None, is_on=True)
        cards.on_trace = _taker(self._file, first, offsets_ns)

    def _order(self, timeout_s: float | None, *, is_on: bool) -> list[int]:
        """Begins or ends the trace on the cards; how far their clocks are ahead, in nanoseconds.

        Raises:
            CardError: a card is lost.
            ReplyTimeoutError: a card has not answered in time.
        """
        stream = self._session.stream
        with stream.lock:
            stream.flush()  # a card may wait for another one whose calls are still here
            links = stream.links
            body = pack_trace(is_on)
            for reply in [one.request(Kind.TRACE, body) for one in links]:
                reply.result(timeout_s)
            return [_offset_ns(one, body) for one in links] if is_on else []


def _offset_ns(link: CardLink, body: bytes) -> int:
    """How far a card's clock is ahead of the program's; the card has nothing else to do.

    Processes of one machine have the same clock, so that the card's time is between question and
    answer. Then nothing is to be corrected.
    """
    rounds = []
    for _ in range(_ROUNDS):
        asked_ns = time.monotonic_ns()
        there_ns = unpack_clock(link.request(Kind.TRACE, body).result())
        rounds.append((time.monotonic_ns() - asked_ns, asked_ns, there_ns))
    took_ns, asked_ns, there_ns = min(rounds)
    if asked_ns <= there_ns <= asked_ns + took_ns:
        return 0
    return there_ns - asked_ns - took_ns // 2


def _taker(file: TraceFile, first: int, offsets_ns: list[int]) -> Callable[[int, memoryview], None]:
    """What takes the events of cards, whose processes in the file are `first` and the next ones."""

    def take(card: int, body: memoryview) -> None:
        events = pb.TraceEvents.FromString(bytes(body))
        names, offset_ns, process = events.names, offsets_ns[card], first + card
        for name, track, start_ns, duration_ns, size_bytes in zip(
            events.name, events.track, events.start_ns, events.duration_ns, events.size_bytes,
            strict=True,
        ):  # fmt: skip
            file.add(
                Event(process, track, names[name], start_ns - offset_ns, duration_ns, size_bytes)
            )
        file.count(process, "memory in use", events.at_ns - offset_ns, events.used_bytes)

    return take
