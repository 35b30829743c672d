"""Sessions with other cards than those of all tests, and failures that are told later."""

from __future__ import annotations

import contextlib
import os

from penstock.card.card_list import card_places
from penstock.card.cards import start_cards
from penstock.card.device import buffer, start
from penstock.card.device.session import Session
from penstock.card.failures import Failures


@contextlib.contextmanager
def session_of(text):
    """The device is made of these cards, written as in $PENSTOCK_CARD."""
    os.environ.setdefault("PENSTOCK_CARD", text)  # only a program with cards has the device
    start.start()
    cards = start_cards(card_places(text))
    former, start._session = (
        start._session,
        Session(cards),
    )
    start._session.planner._least_work = 1e4  # small tensors are split, too
    others = dict(buffer._live)  # those of other cards do not move
    buffer._live.clear()
    is_first, start._owner = start._owner == 0, start.os.getpid()
    try:
        yield start._session
    finally:
        start._session.cards.close()
        start._session = former
        buffer._live.update(others)
        if is_first:
            start._owner = 0


class HeldFailures(Failures):
    """Failures that the program is told of only when `is_held` is False."""

    is_held = True

    @property
    def is_set(self):
        return self._is_set and not self.is_held

    @is_set.setter
    def is_set(self, value):
        self._is_set = value


@contextlib.contextmanager
def held(session):
    """Calls inside are sent although one of them fails, as if the report came late."""
    failures = session.stream.failures
    failures.__class__ = HeldFailures
    failures.is_set = failures.__dict__.pop("is_set", False)
    try:
        yield
    finally:
        is_set = failures._is_set
        failures.__class__ = Failures
        failures.is_set = is_set
