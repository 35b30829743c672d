"""Waiting for a grant of a compute pool: progress on standard error, and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from penstock.cli.say import say

if TYPE_CHECKING:
    from penstock.model import PenstockError
    from penstock.node.rpc import AcquireMessage, PoolClaim, PoolClient

WAKING = signal.SIGURG  # ignored by default, so that a late one does no harm
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
STOPPING = frozenset({signal.SIGTSTP})
TICK_S = 1.0
WITHDRAWN_WITHIN_S = 5.0
RELEASE_S = 3.0


class InterruptedWaitError(Exception):
    """A signal came while a claim waited; the claim is withdrawn."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def wait_for_grant(client: PoolClient, claim: PoolClaim, *, quiet: bool) -> AcquireMessage:
    """Claims, and waits until the application runs. The signals of `Child` must be blocked.

    Raises:
        PenstockError: the claim is refused, or nobody answers.
        InterruptedWaitError: a signal that ends programs came; the claim is withdrawn.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {WAKING})
    progress = _Progress(claim, quiet=quiet)
    reader = _Reader(client, claim)
    reader.start()
    try:
        while True:
            while reader.said:
                progress.show(reader.said.popleft())
            has_ended = reader.has_ended
            # A signal that has come together with the grant is not passed over.
            of_interest = ENDING if has_ended else {WAKING, *ENDING, *STOPPING}
            received = signal.sigtimedwait(of_interest, 0 if has_ended else TICK_S)
            if received is not None and received.si_signo in ENDING:
                reader.withdraw()
                raise InterruptedWaitError(received.si_signo)
            if received is not None and received.si_signo in STOPPING:
                progress.clear()
                _stop_by(received.si_signo)
            if has_ended:
                return reader.grant()
            progress.refresh()
    finally:
        progress.clear()


class _Reader(threading.Thread):
    """Reads the answers about a claim, and wakes the main thread for each."""

    def __init__(self, client: PoolClient, claim: PoolClaim) -> None:
        super().__init__(name="acquire", daemon=True)
        self.said: deque[AcquireMessage | PenstockError] = deque()
        self.last: AcquireMessage | None = None  # the grant, once `has_ended` without an error
        self.error: BaseException | None = None
        self.has_ended = False
        self._client, self._claim = client, claim

    def run(self) -> None:
        """Until the claim is granted, refused or withdrawn."""
        try:
            for update in self._client.acquire(self._claim, self._tell):
                self.last = update
                self._tell(update)
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self.error = error
        self.has_ended = True
        _wake()

    def grant(self) -> AcquireMessage:
        """The grant, once the claim has ended. Raises the error if it was refused."""
        if self.error is not None:
            raise self.error
        if self.last is None:
            raise AssertionError("a claim ends with an error or with an answer")
        return self.last

    def withdraw(self) -> None:
        """Withdraws the claim, even if it is being granted at this moment.

        The order to release comes first: if only the stream ended, a grant whose answer is on its
        way would be held by nobody.
        """
        is_ordered = self._release()
        self._client.cancel()
        self.join(WITHDRAWN_WITHIN_S)
        self._client.close()
        if not is_ordered:
            self._release()

    def _release(self) -> bool:
        """Releases the application if its name is known; returns whether it is."""
        from penstock.model import PenstockError

        if self.last is None:
            return False
        one = self.last.application
        with contextlib.suppress(PenstockError):  # then it is withdrawn with its stream
            why = "its caller was interrupted"
            self._client.release(one.name, 0, why, only=one, timeout_s=RELEASE_S)
        return True

    def _tell(self, what: AcquireMessage | PenstockError) -> None:
        self.said.append(what)
        _wake()


class _Progress:
    """What the claim waits for: one line that is rewritten on a terminal, else a line a change."""

    def __init__(self, claim: PoolClaim, *, quiet: bool) -> None:
        self._claim = claim
        self._is_quiet = quiet
        self._is_terminal = os.isatty(2) if sys.stderr is not None else False
        self._began_s = time.monotonic()
        self._text = ""
        self._is_drawn = False

    def show(self, what: AcquireMessage | PenstockError) -> None:
        text = _text_of(what, self._claim)
        if text == self._text or self._is_quiet:
            return
        self._text = text
        if self._is_terminal:
            self.refresh()
        elif text:
            say(text)

    def refresh(self) -> None:
        """Draws the line anew, with the time that has passed."""
        if not self._is_terminal or self._is_quiet or not self._text:
            return
        line = f"penstock: {int(time.monotonic() - self._began_s)}s: {self._text}"
        try:
            columns = os.get_terminal_size(2).columns
            os.write(2, f"\r\x1b[K{line[: max(10, columns - 1)]}".encode(errors="replace"))
        except OSError:
            return
        self._is_drawn = True

    def clear(self) -> None:
        """Removes the line."""
        if self._is_drawn:
            self._is_drawn = False
            try:
                os.write(2, b"\r\x1b[K")
            except OSError:
                return


def _text_of(what: AcquireMessage | PenstockError, claim: PoolClaim) -> str:
    """What is to be said of an answer; empty when the application runs."""
    from penstock.model import PenstockError

    if isinstance(what, PenstockError):
        return f"{what.what} ({what.why}); asking again for the same claim"
    one = what.application
    reason = what.reason or one.reason
    if one.phase == "running" or (one.phase == "starting" and not reason):
        return ""
    place = f", place {one.place} in the queue" if one.place else ""
    text = f"application {one.name} is {one.phase}{place}: {claim.blocks} blocks" + (
        f": {reason}" if reason else ""
    )
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _wake() -> None:
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, WAKING)


def _stop_by(number: int) -> None:
    """Stops this process as Ctrl-Z would; the claim goes on waiting."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # this process stops here
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
