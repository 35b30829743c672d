"""Follower: does on the cards what the compute pool does with the application.

When the pool suspends or moves the application, or takes a card from it, the program's data comes
into its own memory, its cards end, and their memory is free for others. The program stands still
until the pool has given it cards again, which may be others, of another kind, on other nodes.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from penstock.card.link import CardError
from penstock.card.pool_cards import RUNNING
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.card.device.session import Session
    from penstock.card.pool_cards import Phase, PoolApplication

# The nodes may still be busy with what the pool has told already.
WITHIN_S, AGAIN_S = 60.0, 0.5


class Follower(threading.Thread):
    """Follows one application as long as the program runs."""

    def __init__(self, session: Session, application: PoolApplication, phase: Phase) -> None:
        """`phase`: that in which the session's cards were started."""
        super().__init__(name="penstock-follower", daemon=True)
        self._session = session
        self._application = application
        self._phase = phase  # the cards are those of this phase

    def run(self) -> None:
        """Until the application has ended."""
        phase = self._phase
        try:
            while True:
                phase = self._application.phase(phase)
                if phase.name != RUNNING or phase.cards != self._phase.cards:
                    phase = self._move()
        except CardError as error:
            self._end(error)
        except (PenstockError, RuntimeError) as error:
            self._end(self._application.ended(str(error)))

    def _move(self) -> Phase:
        """Leaves the cards until the application runs; returns the phase of the new ones.

        Raises:
            PenstockError: the application has ended, or its cards cannot be started.
            RuntimeError: they have too little memory.
        """
        with self._session.away() as go_on:
            former, deadline_s = self._phase, 0.0
            while True:
                phase = self._application.running()
                if phase is not former:
                    former, deadline_s = phase, time.monotonic() + WITHIN_S
                try:
                    go_on(phase.cards)
                except PenstockError:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(AGAIN_S)
                else:
                    self._phase = phase
                    return phase

    def _end(self, error: CardError) -> None:
        """Makes each further use of the device raise the error: no other cards may be started."""
        self._session.stream.end(error)
