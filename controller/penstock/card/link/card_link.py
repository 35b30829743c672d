"""Link to a card: the program's side of the connection to one card's worker."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.card.link import faults, forks, monitor
from penstock.card.link.errors import (
    LOST,
    CardError,
    OperationError,
    ProtocolError,
    RefusedError,
    Worker,
)
from penstock.card.link.frame import (
    ERROR,
    EVENT,
    FAULT,
    GOODBYE,
    PING,
    PONG,
    RELEASED,
    REPLY,
    USE_MEMORY,
    Frame,
    Header,
    Part,
    encode,
)
from penstock.card.link.handshake import (
    Agreed,
    goodbye_reason,
    parsed,
    releases,
    shake_hands,
)
from penstock.card.link.kinds import Kinds
from penstock.card.link.reply import Reply
from penstock.card.link.send_queue import SendQueue
from penstock.card.link.settings import MOST_BODY_BYTES, LinkSettings
from penstock.card.link.shared_memory import SlotWriter
from penstock_api.v1 import card_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.card.link.agreement import Agreement
    from penstock.card.link.endpoint import Endpoint
    from penstock.card.link.stream import Stream

_KNOWS_END_WITHIN_S = 0.3  # after its connection ended, a process has soon ended
_OF_WORKERS = {PONG, GOODBYE, USE_MEMORY, RELEASED}


@dataclass(frozen=True)
class Progress:
    """What a card was executing when it last reported."""

    position: int  # of the frame, counted from 1; 0: nothing yet
    kind: str  # of the frame; empty: it waits for the next frame
    since_s: float  # how long it had been executing the frame, or waiting
    reported_s: float  # how long ago it reported this

    def __str__(self) -> str:
        did = (
            f"executing message {self.position} ({self.kind})" if self.kind else "waiting for work"
        )
        return f"{self.reported_s:.1f} s ago it had been {did} for {self.since_s:.1f} s"


class CardLink:
    """The connection to one card's worker. Any thread may call it.

    Frames are executed in the order in which they were posted. A sender thread writes them, so that
    a card that reads slowly delays no other card. A reader thread receives replies and events.

    **Buffers.** The parts of a frame are not copied. A part that the caller may change later (a
    `bytearray`, a view of a tensor) must stay unchanged until `wait_sent` has returned.

    **Waiting without a deadlock.** `post` waits while more than `queue_bytes` are queued for this
    card. A card may read nothing for a while because it waits for another card, in a collective
    operation whose other part is not yet sent. So the caller must post a collective operation to
    all its cards before it waits for one of them: post with `waits=False` to all cards, then call
    `wait_for_room` for each. All operations before have then been queued for all their cards, so
    each card can proceed and the queues shrink. A caller of several threads must post the parts of
    an operation under one lock, so that all cards see operations in the same order.

    **Hung cards.** A card of which nothing has arrived for `silent_s` has failed: its process is
    stopped, or the network is broken. Its worker reports on its own, also while it executes a long
    operation and while a long frame is on its way. So an operation that never ends cannot be told
    from a long one; `progress` shows which it is and for how long.

    **Forks.** In a forked child of the program each use raises `CardError`, and the parent's
    connection is not disturbed.

    **Exit.** A program that ends with open links ends at once, as do their workers; frames that
    are queued are lost. `close` executes them first.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        agreement: Agreement,
        *,
        kinds: Mapping[int, str],
        settings: LinkSettings | None = None,
        on_event: Callable[[int, memoryview], None] | None = None,
        on_fault: Callable[[OperationError], None] | None = None,
        how_ended: Callable[[float], str | None] | None = None,
        on_end: Callable[[CardError], None] | None = None,
        log: str = "",
    ) -> None:
        """Connects, and waits until both sides have proved that they belong together.

        `kinds`: the names of the caller's kinds of frames, by number from `FIRST_KIND`.
        `on_event`: called with the kind and body of each event of the worker.
        `on_fault`: called when a frame without a reply failed on the card.
        Both are called by the reader thread: they must return soon and not wait for this card.
        `on_end`: called once when the card has failed or was closed, by any thread; it must not
        wait.
        `how_ended`: how the worker's process ended, waiting so many seconds for its end at most;
        `spawned` knows it.
        `log`: how a person finds out how a worker ended that is no child of this process.

        Raises:
            CardError: the worker cannot be reached, or is not the one that was agreed on.
        """
        self._kinds = Kinds(kinds)
        self._settings = settings or LinkSettings()
        self._on_event = on_event
        self._on_fault = on_fault
        self._how_ended = how_ended
        self._log = log
        self._on_end = on_end
        self._label = name
        self._slots: SlotWriter | None = None
        self._stream, self._agreed = self._connect(endpoint, agreement)
        self._label = f"{name} ({self._agreed.worker})"
        self._version = self._agreed.version
        self._refusal: CardError | None = None  # why nothing more is posted
        self._lock = threading.Lock()  # of the two that follow
        self._failure: CardError | None = None
        self._replies: dict[int, Reply] = {}  # outstanding, by number
        self._numbers = itertools.count(1)
        self._queue = SendQueue(self._stream, self._settings.queue_bytes)
        self._heard_s = self._pinged_s = self._reported_s = time.monotonic()
        self._pings = itertools.count(1)
        self._pong = pb.CardPong()
        self._threads = [
            threading.Thread(target=run, name=f"{name} {what}", daemon=True)
            for run, what in ((self._send, "sender"), (self._receive, "reader"))
        ]
        forks.register(self)
        for thread in self._threads:
            thread.start()
        monitor.shared().add(self)

    @property
    def worker(self) -> Worker:
        """The worker, as its hello describes it."""
        return self._agreed.worker

    @property
    def is_alive(self) -> bool:
        """Whether the card can be used. False after `close` and in a forked child."""
        return self._refusal is None

    @property
    def failure(self) -> CardError | None:
        """Why the card cannot be used, None while it can."""
        return self._refusal

    @property
    def progress(self) -> Progress:
        """What the card was executing when it last reported, a ping period ago or so."""
        pong, reported_s = self._pong, time.monotonic() - self._reported_s
        kind = self._kinds.name(pong.kind) if pong.kind else ""
        return Progress(pong.position, kind, pong.since_ms / 1000, reported_s)

    @property
    def queued_bytes(self) -> int:
        """Bytes that are queued and not yet written."""
        return self._queue.queued_bytes

    def post(self, kind: int, *parts: Part, waits: bool = True) -> int:
        """Queues a frame without a reply; its body is all parts, one after another.

        Returns the frame's position, counted from 1. `waits`: whether to wait, after the frame has
        been queued, while too much is queued (`wait_for_room`).

        Raises:
            CardError: the card has failed.
            ValueError: the kind is unknown, or the body is longer than `MOST_BODY_BYTES`.
        """
        if self._refusal is not None:
            raise self._refusal.again()
        self._kinds.check(kind)
        position = self._queue.put(encode(self._version, kind, 0, 0, parts))
        if waits and self._queue.is_over:
            self.wait_for_room()
        return position

    def request(self, kind: int, *parts: Part, into: memoryview | None = None) -> Reply:
        """Queues a frame with a reply.

        `into`: a writable buffer that receives the reply's body, which must have exactly its
        length. It must not be used before `result` has returned it, nor at all if `result` raised.
        The request itself never waits for room.

        Raises:
            CardError: the card has failed.
            ValueError: the kind is unknown, or the body is longer than `MOST_BODY_BYTES`.
        """
        if self._refusal is not None:
            raise self._refusal.again()
        self._kinds.check(kind)
        reply = Reply(
            kind, into.cast("B") if into is not None and into.nbytes else into, self._stuck
        )
        number = next(self._numbers)
        frame = encode(self._version, kind, 0, number, parts)
        with self._lock:
            if self._failure is not None:
                raise self._failure.again()
            self._replies[number] = reply
        self._queue.put(frame)
        return reply

    def wait_for_room(self, timeout_s: float | None = None) -> bool:
        """Waits until at most `queue_bytes` are queued. Returns False after a timeout.

        Raises:
            CardError: the card has failed.
        """
        return self._wait(None, timeout_s)

    def wait_sent(self, position: int, timeout_s: float | None = None) -> bool:
        """Waits until the frame at this position, and all before it, have been written.

        The caller may change their parts then. Returns False after a timeout.

        Raises:
            CardError: the card has failed.
        """
        return self._wait(position, timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends the connection in order: the worker executes all frames first, then ends.

        When that takes longer than `timeout_s`, or the card has failed, the link is aborted.
        Further uses raise `CardError`. May be called again.
        """
        with self._lock:
            if self._refusal is not None:
                return
            self._refusal = self._closed()
        body = pb.CardGoodbye().SerializeToString()
        self._queue.put(encode(self._version, GOODBYE, 0, 0, [body]))
        self._threads[1].join(timeout_s)
        self._end(self._closed())

    def abort(self) -> None:
        """Ends the connection at once; frames that are queued are lost, and the worker ends.

        Further uses, and waits of other threads, raise `CardError`. May be called again.
        """
        self._end(self._closed())

    def lose(self, why: str) -> None:
        """Fails the card, for a reason that the link cannot see itself, such as a suspension."""
        self._end(CardError(self._label, "is gone", why, LOST))

    # Called by the monitor and after a fork.

    def tick(self, now_s: float, late_s: float) -> None:
        """Sends a ping when it is due, and fails the card if it has been silent for too long."""
        self._heard_s += late_s
        if now_s - self._pinged_s >= self._settings.ping_period_s:
            self._pinged_s = now_s
            body = pb.CardPing(number=next(self._pings)).SerializeToString()
            self._queue.put_urgent(b"".join(encode(self._version, PING, 0, 0, [body])))
        silent_s = now_s - self._heard_s
        # What has arrived and was not yet received shows that this process is the slow one.
        if silent_s > self._settings.silent_s and not self._stream.has_unread():
            why = f"nothing has come from it for {silent_s:.1f} s; {self.progress}"
            self._end(CardError(self._label, "does not answer", why, LOST))

    def disown(self) -> None:
        """Fails the link in a forked child, without a lock: its holder is not in this process."""
        self._refusal = self._failure = CardError(
            self._label, "cannot be used in a forked child of the program",
            "its worker belongs to the program that opened it",
            "use its tensors in that program alone, and let DataLoader workers yield CPU tensors",
        )  # fmt: skip
        for reply in self._replies.values():
            if not reply.is_done:
                reply.fail(self._refusal)
        self._stream.close()
        if self._slots is not None:
            self._slots.close()

    # The two threads.

    def _send(self) -> None:
        try:
            self._queue.run()
        except OSError as error:
            self._lose(error)

    def _receive(self) -> None:
        decoder = self._agreed.decoder
        decoder.most_body_bytes = MOST_BODY_BYTES
        decoder.on_header = self._on_header
        try:
            while True:
                while (frame := decoder.next()) is not None:
                    if frame.kind == GOODBYE:
                        self._on_goodbye(goodbye_reason(frame.body))
                        return
                    self._on_frame(frame)
                count = self._stream.receive(decoder.room())
                self._heard_s = time.monotonic()
                if not count:
                    self._lose(None)
                    return
                decoder.filled(count)
        except OSError as error:
            self._lose(error)
        except ProtocolError as error:
            self._break(str(error))
        except Exception as error:  # of a callback: nobody would hear that this thread has ended
            why = f"a callback of its link failed: {type(error).__name__}: {error}"
            self._end(CardError(self._label, "is gone", why, LOST))
            raise
        finally:
            self._threads[0].join()
            self._stream.close()
            if self._slots is not None:
                self._slots.close()

    def _on_header(self, header: Header) -> memoryview | None:
        kind, flags = header.kind, header.flags
        if flags & REPLY and not flags & ~(REPLY | ERROR):
            reply = self._replies.get(header.number)
            if reply is None or reply.kind != kind:
                raise ProtocolError(f"reply {header.number} of kind {kind} belongs to no request")
            return None if flags & ERROR else reply.memory(header.length)
        if header.number or flags & ~EVENT:
            raise ProtocolError(f"a frame of kind {kind} has unexpected flags")
        if flags == EVENT and kind != FAULT and not self._kinds.is_known(kind):
            raise ProtocolError(f"an event has the unknown kind {kind}")
        if not flags and kind not in _OF_WORKERS:
            raise ProtocolError(f"a frame has the unknown kind {kind}")
        return None

    def _on_frame(self, frame: Frame) -> None:
        if frame.flags & REPLY:
            self._on_reply(frame)
        elif frame.kind == PONG:
            self._pong = parsed(pb.CardPong(), frame.body)
            self._reported_s = time.monotonic()
        elif frame.kind == USE_MEMORY and self._slots is not None:
            self._queue.use_memory(self._slots)
        elif frame.kind == RELEASED and self._slots is not None:
            self._slots.release(frame.body)
        elif frame.kind == FAULT:
            said = parsed(pb.CardFault(), frame.body)
            if self._on_fault is not None:
                self._on_fault(self._fault(said.kind, frame.body))
        elif self._on_event is not None:
            self._on_event(frame.kind, frame.body)

    def _on_reply(self, frame: Frame) -> None:
        # Read first: if that ends the link, the request is still among those that fail with it.
        error = self._fault(frame.kind, frame.body) if frame.flags & ERROR else None
        with self._lock:
            reply = self._replies.pop(frame.number, None)
        if reply is None:  # the link has been ended meanwhile
            return
        if error is not None:
            reply.fail(error)
        elif reply.refuses(len(frame.body)):
            why = f"the reply has {len(frame.body)} bytes, which is not the length of the buffer"
            kind = self._kinds.name(frame.kind)
            reply.fail(OperationError(self._label, kind, 0, "ValueError", why))
        else:
            reply.complete(frame.body)

    def _fault(self, kind: int, body: memoryview) -> OperationError:
        return faults.from_body(self._label, self._kinds.name(kind), body)

    # The end.

    def _on_goodbye(self, reason: str) -> None:
        if reason:
            self._break(reason)
        elif self._refusal is None:
            self._end(CardError(self._label, "is gone", "its worker has ended in order", LOST))
        else:
            self._end(self._refusal)

    def _break(self, why: str) -> None:
        why = f"{why}; {releases(self._agreed.release)}"
        self._end(CardError(self._label, "broke the protocol", why, LOST))

    def _lose(self, error: OSError | None) -> None:
        """The connection has ended: finds out why, and fails the card."""
        if self._failure is not None:
            return
        ended = self._how_ended(_KNOWS_END_WITHIN_S) if self._how_ended is not None else None
        said = (error.strerror or str(error)) if error is not None else ""
        why = ended or f"its connection ended{f' ({said.lower()})' if said else ''}"
        if not ended and self._log:
            why += f"; how its worker ended: {self._log}"
        self._end(CardError(self._label, "is gone", why, LOST))

    def _end(self, failure: CardError) -> None:
        """Fails the card for this reason, if it has not failed before, and wakes all waits."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            if self._refusal is None:
                self._refusal = failure
            replies, self._replies = self._replies, {}
        monitor.shared().remove(self)
        self._stream.shut()
        self._queue.fail()
        if self._slots is not None:
            self._slots.end()
        if self._on_end is not None:  # first, so that whoever waits for a reply finds it done
            self._on_end(failure)
        for reply in replies.values():
            reply.fail(failure)

    def _closed(self) -> CardError:
        return CardError(
            self._label, "is closed", "the program has ended its connection", "open the card again"
        )  # fmt: skip

    def _wait(self, position: int | None, timeout_s: float | None) -> bool:
        if self._refusal is not None:
            raise self._refusal.again()
        is_in_time = self._queue.wait(position, timeout_s)
        if self._failure is not None:
            raise self._failure.again()
        return is_in_time

    def _stuck(self) -> str:
        return f"{self._label} is alive; {self.progress}"

    def _connect(self, endpoint: Endpoint, agreement: Agreement) -> tuple[Stream, Agreed]:
        """Raises `CardError` if no trusted worker answers in time."""
        deadline_s = time.monotonic() + self._settings.connect_s
        stream = None
        try:
            stream = endpoint.connect(agreement, deadline_s)
            if not stream.is_remote:
                self._slots = _slots()
            memory = self._slots.descriptor if self._slots is not None else None
            left_s = deadline_s - time.monotonic()
            return stream, shake_hands(stream, agreement, None, left_s, memory)
        except (OSError, ProtocolError) as error:
            failure = self._not_connected(error)
            if stream is not None:
                stream.shut()
                stream.close()
            if self._slots is not None:
                self._slots.close()
            raise failure from error

    def _not_connected(self, error: Exception) -> CardError:
        if isinstance(error, RefusedError):  # it has said what to do as well
            return CardError(self._label, "cannot be used", f"its worker says: {error}", "")
        ended = self._how_ended(_KNOWS_END_WITHIN_S) if self._how_ended is not None else None
        why = ended or _words(error, self._settings.connect_s)
        return CardError(self._label, "cannot be reached", why, self._log or "see what it wrote")


def _slots() -> SlotWriter | None:
    try:
        return SlotWriter()
    except OSError:  # then all goes through the socket
        return None


def _words(error: Exception, connect_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"it has not answered in {connect_s:g} s"
    return str(error)
