"""`Cards`: the cards of this program, with their workers."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.card.failures import Failures
from penstock.card.frames import Kind
from penstock.card.link import CardError
from penstock.card.places import OnCard
from penstock.card.speeds import measure
from penstock.model import PenstockError
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from penstock.card.link import OperationError
    from penstock.card.places import CardPlace, StartedCard


_PROGRAM = secrets.token_bytes(16)  # with the pid it tells this program from others
OTHERS_S = 0.5  # until the end of a process is known to the program, at the latest


class Cards:
    """Started cards, in their order.

    If one is lost, all are ended: what is left of the program's tensors on the others is of no use,
    and some may wait for the lost one.

    Attributes:
        speeds: What they are worth to each other.
        has_measured: Whether the speeds were measured, and not given by the program's starter.
        failures: What has failed on them.
        on_trace: Called with a card's place and the body of its TRACED, by the link's thread.
    """

    on_trace: Callable[[int, memoryview], None] | None = None

    def __init__(self) -> None:
        self.cards: list[StartedCard] = []
        self.speeds: tuple[float, ...] = ()
        self.has_measured = False
        self.failures = Failures()
        self._is_closed = False

    def start(self, places: Sequence[CardPlace], speeds: tuple[float, ...] | None = None) -> None:
        """Starts the workers and brings them together.

        `speeds`: those that are known; None: they are given by the places, or measured.

        Raises:
            PenstockError: a worker does not start, or they do not find each other.
        """
        with self.ended_on_error():
            # Each loads torch first, which takes seconds, so they do it at the same time.
            with ThreadPoolExecutor(len(places)) as threads:
                futures = [threads.submit(self._start, *one) for one in enumerate(places)]
            self.cards = [one for one in map(_started, futures) if one is not None]
            for future in futures:
                future.result()
            _set_up(self.cards)
            given = [one.speed for one in self.cards if one.speed is not None]
            self.has_measured = len(given) < len(places)
            if speeds is None:
                speeds = self.measured_speeds() if self.has_measured else tuple(given)
            self.speeds = speeds
        atexit.register(self.close)

    @contextlib.contextmanager
    def ended_on_error(self) -> Iterator[None]:
        """Ends the cards if what is inside fails; raises the loss that led to it, if one did."""
        try:
            yield
        except CardError as error:
            self.close()
            raise self.cause(error) from error
        except BaseException:
            self.close()
            raise

    def _start(self, number: int, place: CardPlace) -> StartedCard:
        name = card_name(number)

        def on_event(event: int, body: memoryview) -> None:
            if event == Kind.FAILED:
                self.failures.add(name, body)
            elif event == Kind.TRACED and self.on_trace is not None:
                self.on_trace(number, body)

        def on_fault(error: OperationError) -> None:
            # It has left out calls, so it is not in step with the others any more. The reason may
            # be that another card has gone, which is then known by the end of this time.
            why = f"it could not execute what the program sent: {error}"
            later = threading.Timer(OTHERS_S, card.link.lose, (why,))
            later.daemon = True
            later.start()

        card = place.start(name, OnCard(on_event, on_fault, self._on_end))
        return card

    def _on_end(self, error: CardError) -> None:
        if self._is_closed or not self.failures.lose(error):
            return
        for one in self.cards:
            one.link.abort()
        threading.Thread(target=self._kill, name="penstock-end", daemon=True).start()

    def _kill(self) -> None:
        for one in self.cards:
            one.kill()

    def kill(self) -> None:
        """Ends the workers at once."""
        self._is_closed = True
        atexit.unregister(self.close)
        self._kill()

    def cause(self, error: CardError) -> CardError:
        """The error that led to this one: the loss of a card ends the others."""
        return error if self.failures.lost is None else self.failures.lost.again()

    def measured_speeds(self) -> tuple[float, ...]:
        """What the cards are worth to each other now; takes a second. Raises `CardError`."""
        return measure([one.link for one in self.cards]) if len(self.cards) > 1 else (1.0,)

    def close(self) -> None:
        """Ends the workers."""
        self._is_closed = True
        atexit.unregister(self.close)
        for one in self.cards:
            with contextlib.suppress(PenstockError):
                one.close(1.0)


def card_name(number: int) -> str:
    """What errors call a card before it is known where it runs."""
    return f"card {number}"


def number_of(error: CardError) -> int | None:
    """The place of the card that an error names; None: it names none."""
    found = re.match(r"card (\d+)", error.card)
    return int(found[1]) if found else None


def start_cards(places: Sequence[CardPlace], speeds: tuple[float, ...] | None = None) -> Cards:
    """Starts a worker at each place; `speeds` as in `Cards.start`. Raises `PenstockError`."""
    cards = Cards()
    cards.start(places, speeds)
    return cards


def _started(future: Future[StartedCard]) -> StartedCard | None:
    return None if future.exception() is not None else future.result()


def _set_up(cards: list[StartedCard]) -> None:
    """Brings the cards together. Raises `CardError`, `OperationError`."""
    program = _PROGRAM + b"%d" % os.getpid()
    replies = [
        one.link.request(Kind.SET_UP, pb.Setup(
            card=i, cards=len(cards), host=one.host, program=program
        ).SerializeToString())
        for i, one in enumerate(cards)
    ]  # fmt: skip
    meeting = pb.Meeting()
    for reply in replies:
        meeting.MergeFromString(bytes(reply.result()))
    replies = [one.link.request(Kind.MEET, meeting.SerializeToString()) for one in cards]
    for reply in replies:
        reply.result()
