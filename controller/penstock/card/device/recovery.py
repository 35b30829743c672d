"""Recovery: other cards take the place of lost ones, and the program notices a pause.

From time to time the program gets a copy of what is on its cards, a snapshot, while it goes on.
When a card is lost, all workers are started again; they load the snapshot and execute all frames
since (`Journal`). Values that the program has read meanwhile stay as they were.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.card.cards import number_of, start_cards
from penstock.card.device.buffer import live_buffers
from penstock.card.device.event_file import note_event
from penstock.card.device.journal import Content, Journal
from penstock.card.device.warn import warn
from penstock.card.frames import MOST_PART_BYTES, Kind, pack_range
from penstock.card.layout import Partial, Split
from penstock.card.link import CardError, OperationError
from penstock.card.names import RECOVERY_VARIABLE
from penstock.card.places import THIS_NODE
from penstock.card.spare_cards import ReplaceableCard
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.cards import Cards
    from penstock.card.device.buffer import Buffer
    from penstock.card.device.journal import Bodies
    from penstock.card.device.session import Session
    from penstock.card.link import Reply
    from penstock.card.places import CardPlace

LEAST_PERIOD_S = 2.0  # between two snapshots
PERIODS = 20  # of the time that a snapshot took, until the next one
MOST_BYTES = 512 << 20  # of frames, until there is a snapshot at the next end of a step
LONGEST_S, MOST_BYTES_ANYWHERE = 60.0, 2 << 30  # for a program without steps
AGAIN_S = 0.5  # between two tries to start cards
MOST_LOSSES = 5  # of cards since a snapshot: what they were told may be what ends them


def recovers() -> bool:
    """Whether other cards take the place of lost ones. Raises `PenstockError` for other words."""
    text = os.environ.get(RECOVERY_VARIABLE, "off")
    if text not in {"on", "off", ""}:
        raise PenstockError(
            f"invalid ${RECOVERY_VARIABLE}: {text[:40]!r}", "it is neither on nor off",
            f"write {RECOVERY_VARIABLE}=on",
        )  # fmt: skip
    return text == "on"


class Recovery:
    """The snapshots of a session, and what starts its cards again.

    Attributes:
        copied_s: When the program's copy of what is on the cards was last made anew; before the
            first snapshot, when the cards were started: it has what they were told since.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._journal = Journal()
        self._is_complete = True  # the journal begins with cards that had nothing
        self._pending: _Snapshot | None = None
        self._next_s = 0.0  # a snapshot is due
        self._latest_s = self.copied_s = time.monotonic()
        self._started_s = 0.0  # other cards took the place of lost ones
        self._losses = 0
        self._speeds: tuple[float, ...] | None = None  # other ones, of cards that took places
        self._failures = 0  # of operations, before the snapshot

    def note(self, kind: Kind, bodies: Bodies) -> None:
        """Keeps a frame that changes what a card has, before it is sent."""
        self._journal.add(kind, bodies)

    @property
    def copy_bytes(self) -> int:
        """What the program keeps: the last snapshot, and what the cards were told since."""
        return self._journal.snapshot_bytes + self._journal.size_bytes

    def begin_anew(self) -> None:
        """The session has other cards, with all its buffers: only a snapshot says what is there."""
        self._journal, self._is_complete, self._pending = Journal(), False, None
        self._next_s = 0.0
        self._snap()

    def step(self) -> None:
        """An optimizer has ended a step, so that few tensors live. The caller holds the lock."""
        if self._speeds is not None:
            self._session.rebalance(self._speeds)
            self._speeds = None
        if self._pending is not None:
            self._take(self._pending)
        elif time.monotonic() >= self._next_s or self._journal.size_bytes > MOST_BYTES:
            self._snap()

    def between_calls(self) -> None:
        """A program without steps has snapshots too. The caller holds the lock, in no call."""
        late_s = time.monotonic() - self._latest_s
        if self._pending is not None:
            self._take(self._pending)
        elif late_s > LONGEST_S or self._journal.size_bytes > MOST_BYTES_ANYWHERE:
            self._snap()

    def _snap(self) -> None:
        self._latest_s = time.monotonic()
        try:
            self._pending = _Snapshot(self._session, self._journal)
        except CardError:
            self._pending = None  # the next call starts cards again, and the next step tries again

    def _take(self, snapshot: _Snapshot) -> None:
        """Begins the journal at a snapshot, if all of it is there."""
        if not snapshot.is_done:
            return
        self._pending = None
        took_s = time.monotonic() - snapshot.began_s
        self._next_s = time.monotonic() + max(LEAST_PERIOD_S, PERIODS * took_s)
        try:
            self._journal.adopt(snapshot.contents(), snapshot.position)
        except CardError:
            return
        self._is_complete, self._losses = True, 0
        self.copied_s = snapshot.began_s
        self._failures = snapshot.failures

    def replace_lost(self, lost: CardError) -> None:
        """Starts all cards again, with all that they had. The caller holds the stream's lock.

        Raises:
            CardError: that is not possible, so no card can be used any more.
        """
        session, former = self._session, self._session.cards
        began_s = time.monotonic()
        self._pending = None
        self._losses += 1
        try:
            former.kill()
            cards = self._started(lost)
        except BaseException:
            session.stream.is_lost = True
            raise
        cards.failures.follow(former.failures, self._failures)
        session.replaced(cards)
        text = (f"{lost.sentence}; all cards run again after {self._started_s - began_s:.1f} s, "
                f"with the same content after {time.monotonic() - began_s:.1f} s"
                f"{_moves(former, cards)}")  # fmt: skip
        note_event("card-lost", text)
        warn(text)

    def _started(self, lost: CardError) -> Cards:
        if not self._is_complete or self._losses > MOST_LOSSES:
            raise lost from None
        former = self._session.cards
        places = [one.again for one in former.cards]
        deadline_s = time.monotonic() + max(one.tried_s for one in places)
        lost_before = {number_of(lost)}
        while True:
            try:
                return self._replayed(places, former)
            except PenstockError as error:  # noqa: PERF203 - it takes seconds
                self._losses += isinstance(error, CardError)
                if not self._may_try(deadline_s):
                    raise lost.and_then(f"it cannot be started again: {error}") from error
                if isinstance(error, CardError):
                    _give_way(places, number_of(error), lost_before)
                time.sleep(AGAIN_S)

    def _may_try(self, deadline_s: float) -> bool:
        is_late = time.monotonic() > deadline_s
        return self._losses <= MOST_LOSSES and not is_late and not self._session.stream.is_lost

    def _replayed(self, places: Sequence[CardPlace], former: Cards) -> Cards:
        """New cards that have everything. Raises `PenstockError`."""
        cards = start_cards(places, former.speeds)
        self._started_s = time.monotonic()
        cards.has_measured = former.has_measured
        if not cards.has_measured:
            given = tuple(one.speed or 1.0 for one in cards.cards)
            self._speeds = given if given != self._session.speeds else None
        with cards.ended_on_error():
            links = [one.link for one in cards.cards]
            for kind, bodies in self._journal.replay():
                for link, parts in zip(links, bodies, strict=True):
                    if parts is None:
                        continue
                    if kind == Kind.COMPUTE:
                        link.request(kind, *parts)  # the program has the answer
                    else:
                        link.post(kind, *parts, waits=False)
                for link in links:
                    link.wait_for_room()
            for reply in [link.request(Kind.SYNCHRONIZE) for link in links]:
                reply.result()
        return cards


def _give_way(places: list[CardPlace], lost: int | None, lost_before: set[int | None]) -> None:
    """Replaces a card by a spare one, if there is any, once it was lost again."""
    if lost is not None and lost in lost_before:
        place = places[lost]
        places[lost] = place.other() if isinstance(place, ReplaceableCard) else place
    lost_before.add(lost)


def _moves(former: Cards, cards: Cards) -> str:
    """Which spare cards have taken places, as the end of a sentence."""
    pairs = zip(former.cards, cards.cards, strict=True)
    moved = [(str(old.again), str(new.again)) for old, new in pairs]
    return "".join(f"; {new} has taken the place of {old}" for old, new in moved if old != new)


class _Snapshot:
    """What all cards have after the calls so far, on its way to the program.

    Attributes:
        position: How many frames the journal had.
        began_s: When it was begun.
        failures: How many operations had failed by then.
    """

    def __init__(self, session: Session, journal: Journal) -> None:
        """Asks the cards. The caller holds the stream's lock. Raises `CardError`."""
        stream, cards = session.stream, session.cards
        self.began_s = time.monotonic()
        session.reductions.finish_all()  # the cards know them by numbers, not by buffers
        buffers = [one for one in live_buffers() if one.layout is not None]
        stream.flush()
        self.position, self.failures = journal.position, session.cards.failures.count
        # What all cards have comes from one, best from this node.
        hosts = [one.host for one in cards.cards]
        self._source = hosts.index(THIS_NODE) if THIS_NODE in hosts else 0
        self._cards = len(hosts)
        self._sizes_bytes: dict[int, list[int]] = {}
        self._replies: dict[int, list[list[Reply]]] = {}
        for buffer in buffers:
            self._ask(session, buffer)

    def _ask(self, session: Session, buffer: Buffer) -> None:
        layout = buffer.layout
        sizes_bytes = [buffer.size_bytes] * self._cards
        if isinstance(layout, Split):
            sizes_bytes = [high - low for low, high in pairwise(layout.bounds)]
        is_whole = not isinstance(layout, (Split, Partial))
        self._sizes_bytes[buffer.number] = sizes_bytes
        self._replies[buffer.number] = [
            session.stream.begin_downloads(_requests(card, buffer.number, sizes_bytes[card]))
            for card in ((self._source,) if is_whole else range(self._cards))
        ]

    @property
    def is_done(self) -> bool:
        """Whether all answers are there, or a card is lost."""
        return all(one.is_done for replies in self._replies.values()
                   for of_card in replies for one in of_card[-1:])  # fmt: skip

    def contents(self) -> dict[int, Content]:
        """What each card has of each buffer, by its number. Raises `CardError`."""
        return {
            number: Content(self._parts(replies), self._sizes_bytes[number])
            for number, replies in self._replies.items()
        }

    def _parts(self, replies: Sequence[Sequence[Reply]]) -> list[list[memoryview]] | None:
        try:
            parts = [[one.result() for one in of_card] or [memoryview(b"")] for of_card in replies]
        except OperationError:
            return None  # an operation that was to make it has failed
        return parts * self._cards if len(parts) == 1 else parts


def _requests(card: int, number: int, size_bytes: int) -> list[tuple[int, bytes]]:
    return [
        (card, pack_range(number, first, min(size_bytes, first + MOST_PART_BYTES)))
        for first in range(0, size_bytes, MOST_PART_BYTES)
    ]
