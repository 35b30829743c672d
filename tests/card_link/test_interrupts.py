"""Ctrl-C in a program that goes on, as in a notebook: its cards stay usable."""

from __future__ import annotations

import contextlib
import sys

import pytest
from tests.card_link.support.cards import spawned
from tests.card_link.support.worker import COUNT, ECHO

from penstock.card.link import LinkSettings


@contextlib.contextmanager
def interrupted_after(calls: int):
    """Ctrl-C takes effect when the link's own code has made so many calls of built-in functions.

    The interpreter looks for signals after each call.
    """
    made = []

    def profile(frame, event, _) -> None:
        if event == "c_return" and "/card/link/" in frame.f_code.co_filename:
            made.append(frame.f_lineno)
            if len(made) == calls:
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_program_that_is_interrupted_anywhere_goes_on_with_its_cards(size):
    body = b"x" * size
    interrupts = 0
    # No ping comes that would wake the sender thread, too.
    with spawned(settings=LinkSettings(ping_period_s=60, silent_s=60)) as card:
        link = card.link
        for calls in range(1, 40):
            with contextlib.suppress(KeyboardInterrupt):
                interrupts += 1
                with interrupted_after(calls):
                    link.post(COUNT, body)
                    link.request(ECHO, body).result(10)
                interrupts -= 1
            # Each frame was put in or was not; what follows is executed.
            position = link.post(COUNT)
            assert link.request(ECHO, b"on").result(10) == b"on"
            assert link.wait_sent(position, 5)
            assert link.queued_bytes == 0
    assert 10 < interrupts < 39
