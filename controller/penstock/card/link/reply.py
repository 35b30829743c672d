"""Replies: what a request to a card waits for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.card.link.errors import CardError, OperationError, ReplyTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


class Reply:
    """The reply to a request. Several may be outstanding; they may come in any order."""

    __slots__ = ("_body", "_done", "_error", "_into", "_kind", "_stuck")

    def __init__(self, kind: int, into: memoryview | None, stuck: Callable[[], str]) -> None:
        """`stuck`: says what the card was doing, for the text of a timeout."""
        self._kind = kind
        self._into = into
        self._stuck = stuck
        self._body = memoryview(b"")
        self._error: CardError | OperationError | None = None
        # A lock that is held until the reply is there is the cheapest thing that can be waited for.
        self._done = threading.Lock()
        self._done.acquire()

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
        if not self._done.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0)):
            raise ReplyTimeoutError(f"no reply has come in {timeout_s:g} s", self._stuck())
        self._done.release()
        if self._error is not None:
            raise self._error.again()
        return self._body

    @property
    def is_done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return not self._done.locked()

    # For the link alone.

    @property
    def kind(self) -> int:
        """The kind of the request."""
        return self._kind

    def memory(self, length: int) -> memoryview | None:
        """Where a body of this length is to be received; None: in new memory."""
        return self._into if self._into is not None and len(self._into) == length else None

    def complete(self, body: memoryview) -> None:
        """The reply has come."""
        self._body = body
        self._done.release()

    def fail(self, error: CardError | OperationError) -> None:
        """There is no reply, for this reason."""
        self._error = error
        self._done.release()

    def refuses(self, length: int) -> bool:
        """Whether a body of this length does not fit the caller's buffer."""
        return self._into is not None and len(self._into) != length
