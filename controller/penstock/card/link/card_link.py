"""Link to a card: the front-end's side of the connection to one card's worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.card.link.agreement import Agreement
    from penstock.card.link.endpoint import Endpoint
    from penstock.card.link.errors import CardError, OperationError, Worker

Part = bytes | bytearray | memoryview


@dataclass(frozen=True)
class LinkSettings:
    """Bounds and timeouts of a link. Both sides of a connection may have different ones."""

    connect_s: float = 60.0  # a worker answers only after it has loaded its framework
    ping_period_s: float = 0.5
    silent_s: float = 1.75  # a card of which nothing has arrived for so long hangs
    queue_bytes: int = 64 << 20  # `post` waits while more than this is queued for the card


@dataclass(frozen=True)
class Progress:
    """What a card was executing when it last reported."""

    position: int  # of the frame, counted from 1; 0: nothing yet
    kind: str  # of the frame; empty: it waits for the next frame
    since_s: float  # how long it has been executing the frame, or waiting
    reported_s: float  # how long ago it reported this


class Reply:
    """The reply to a request. Several may be outstanding; they may come in any order."""

    def result(self, timeout_s: float | None = None) -> memoryview:
        """The body of the reply, writable and the caller's own; waits until it has come.

        Without a timeout the wait ends with the reply or with the card's failure. An operation may
        last for as long as it likes: a kernel that never ends cannot be told from a long one (see
        `CardLink.progress`). After a timeout this method may be called again.

        Raises:
            OperationError: the operation failed on the card.
            ReplyTimeoutError: the reply has not come in `timeout_s`.
            CardError: the card has failed.
        """
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """Whether `result` would return or raise at once."""
        raise NotImplementedError


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

    **Forks.** In a forked child of the program each use raises `CardError`, and the parent's
    connection is not disturbed.
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
    ) -> None:
        """Connects, and waits until both sides have proved that they belong together.

        `kinds`: the names of the caller's kinds of frames, by number from `FIRST_KIND`.
        `on_event`: called with the kind and body of each event of the worker.
        `on_fault`: called when a frame without a reply failed on the card.
        Both are called by the reader thread: they must return soon and not wait for this card.
        `how_ended`: how the worker's process ended, waiting so many seconds for its end at most;
        `spawned` knows it.

        Raises:
            CardError: the worker cannot be reached, or is not the one that was agreed on.
        """
        raise NotImplementedError

    @property
    def worker(self) -> Worker:
        """The worker, as its hello describes it."""
        raise NotImplementedError

    @property
    def is_alive(self) -> bool:
        """Whether the card can be used. False after `close` and in a forked child."""
        raise NotImplementedError

    @property
    def failure(self) -> CardError | None:
        """Why the card cannot be used, None while it can."""
        raise NotImplementedError

    @property
    def progress(self) -> Progress:
        """What the card was executing when it last reported, at most a ping period ago."""
        raise NotImplementedError

    @property
    def queued_bytes(self) -> int:
        """Bytes that are queued and not yet written."""
        raise NotImplementedError

    def post(self, kind: int, *parts: Part, waits: bool = True) -> int:
        """Queues a frame without a reply; its body is all parts, one after another.

        Returns the frame's position, counted from 1. `waits`: whether to wait, after the frame has
        been queued, while too much is queued (`wait_for_room`).

        Raises:
            CardError: the card has failed.
            ValueError: the kind is unknown, or the body is longer than `MOST_BODY_BYTES`.
        """
        raise NotImplementedError

    def request(self, kind: int, *parts: Part, into: memoryview | None = None) -> Reply:
        """Queues a frame with a reply, and sends it at once if possible.

        `into`: a writable buffer that receives the reply's body, which must have exactly its
        length. It must not be used before `result` has returned it, nor at all if `result` raised.
        The request itself never waits for room.

        Raises:
            CardError: the card has failed.
            ValueError: the kind is unknown, or the body is longer than `MOST_BODY_BYTES`.
        """
        raise NotImplementedError

    def flush(self) -> None:
        """Sends what is queued from this thread, as far as that is possible without waiting.

        The sender thread sends all frames anyway, but a thread that keeps the interpreter busy may
        delay it by some milliseconds.
        """
        raise NotImplementedError

    def wait_for_room(self, timeout_s: float | None = None) -> bool:
        """Waits until at most `queue_bytes` are queued. Returns False after a timeout.

        Raises:
            CardError: the card has failed.
        """
        raise NotImplementedError

    def wait_sent(self, position: int, timeout_s: float | None = None) -> bool:
        """Waits until the frame at this position, and all before it, have been written.

        The caller may change their parts then. Returns False after a timeout.

        Raises:
            CardError: the card has failed.
        """
        raise NotImplementedError

    def close(self, timeout_s: float = 10.0) -> None:
        """Ends the connection in order: the worker executes all frames first, then ends.

        When that takes longer than `timeout_s`, or the card has failed, the link is aborted.
        Further uses raise `CardError`. May be called again.
        """
        raise NotImplementedError

    def abort(self) -> None:
        """Ends the connection at once; frames that are queued are lost, and the worker ends.

        Further uses, and waits of other threads, raise `CardError`. May be called again.
        """
        raise NotImplementedError
