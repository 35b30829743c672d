"""`Balance`: cards get work by how long each of them takes for its part of the program's steps.

Speeds that are measured at the start are those of products and convolutions of one size. A program
has other operations, some of which every card does whole, and a card's speed changes while others
use its device. So the cards are asked now and then how long they worked since they were last asked;
who worked longer than the others gets less from then on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from penstock.card.frames import Kind, unpack_figures
from penstock.card.link import CardError, OperationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.device.session import Session
    from penstock.card.link import Reply

ASKS_S, ASKS_STEPS = 1.0, 3  # between two questions, at least
FIRST_PERIOD_S = 1.0  # between two changes; doubled with each one, as new plans take time
LONGEST_PERIOD_S = 60.0
LEAST_GAIN = 0.03  # of a step's time
URGENT_GAIN = 0.2  # for which nothing waits: a card has become slow
LEAST_SPEED = 0.001  # of the fastest card's: a card whose part is one row may still take longest


class Balance:
    """Adapts the speeds of a session's cards; does nothing if the program's starter gave them.

    A program that asks torch for deterministic algorithms keeps its speeds, too: sums over other
    parts of a batch have other last digits.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._period_s = FIRST_PERIOD_S
        self._asked_s = self._former_s = time.monotonic()
        self._steps = 0  # since it has asked
        self._replies: list[Reply] = []
        # Nanoseconds that each card had worked, by its last answer and a period ago.
        self._last: list[int] | None = None
        self._former: list[int] | None = None

    def step(self) -> None:
        """An optimizer has ended a step. Raises `CardError` if a card is lost."""
        session = self._session
        if not session.cards.has_measured or torch.are_deterministic_algorithms_enabled():
            return
        with session.stream.lock:
            self._steps += 1
            if self._replies:
                self._take_answers()
            is_long = time.monotonic() - self._asked_s >= ASKS_S and self._steps >= ASKS_STEPS
            if (self._last is None or is_long) and not self._replies:
                self._asked_s, self._steps = time.monotonic(), 0
                self._replies = session.stream.begin(Kind.FIGURES)

    def restart(self) -> None:
        """The session has other cards."""
        self._period_s, self._steps = FIRST_PERIOD_S, 0
        self._asked_s = time.monotonic()
        self._replies, self._last, self._former = [], None, None

    def _take_answers(self) -> None:
        """Takes the cards' answers if all are there: nobody waits for them."""
        if not all(one.is_done for one in self._replies):
            return
        replies, self._replies = self._replies, []
        try:
            busy = [unpack_figures(one.result()).busy_ns for one in replies]
        except (CardError, OperationError):
            return  # the next operation raises it
        last, self._last = self._last, busy
        if last is None or self._former is None:
            self._former, self._former_s = busy, time.monotonic()
            return
        now_s = time.monotonic()
        better = balanced(self._session.speeds, _between(last, busy), URGENT_GAIN)
        if better is None and now_s - self._former_s >= self._period_s:
            better = balanced(self._session.speeds, _between(self._former, busy))
            self._former, self._former_s = busy, now_s
        if better is not None:
            self._session.rebalance(better)
            self._period_s = min(2 * self._period_s, LONGEST_PERIOD_S)
            self._last = self._former = None  # what the cards do for this is no part of a step


def _between(before: Sequence[int], now: Sequence[int]) -> list[int]:
    return [late - early for late, early in zip(now, before, strict=True)]


def balanced(
    speeds: Sequence[float], worked: Sequence[int], least_gain: float = LEAST_GAIN
) -> tuple[float, ...] | None:
    """Better speeds, given how long each card has worked with these; the fastest card's is 1.

    Each speed is changed in proportion to the card's time. A part of the time that does not depend
    on the share makes the change too small, never too large, so that repeated changes come to rest
    where all cards take equally long. None if that would save less than `least_gain` of the time.
    """
    mean = sum(worked) / len(worked)
    if min(worked) <= 0 or max(worked) < (1 + least_gain) * mean:
        return None
    better = [speed * mean / one for speed, one in zip(speeds, worked, strict=True)]
    return tuple(max(one / max(better), LEAST_SPEED) for one in better)
