"""A card that is killed at random moments: right results, or an error that names it."""

from __future__ import annotations

import os
import random
import signal
import threading

from tests.card_link.support.cards import spawned
from tests.card_link.support.worker import ECHO

from penstock.card.link import CardError


def test_fifty_kills_at_random_moments_never_give_a_wrong_result():
    """Each result is right, or the error names the card; never another request's data."""
    generator = random.Random(20)  # noqa: S311 - no secret
    right = lost = 0
    for kill in range(50):
        name = f"card {kill}"
        with spawned(name) as card:
            timer = threading.Timer(generator.uniform(0, 0.03), os.kill, (card.pid, signal.SIGKILL))
            timer.start()
            replies = []
            try:
                for number in range(100_000):
                    said = b"%d" % number * generator.choice((1, 1, 1, 20_000))
                    replies.append((said, card.link.request(ECHO, said)))
                    if len(replies) > 20:
                        wanted, reply = replies.pop(generator.randrange(20))
                        assert reply.result(10) == wanted
                        right += 1
            except CardError as error:
                assert error.card.startswith(name + " (")  # noqa: PT017 - `raises` would hide where
                lost += 1
            for wanted, reply in replies:
                try:
                    assert reply.result(10) == wanted
                    right += 1
                except CardError as error:  # noqa: PERF203 - as above
                    assert f"{name} (gpu 0" in str(error)  # noqa: PT017
                    assert "killed by signal 9" in str(error)  # noqa: PT017
            timer.join()
    assert lost == 50
    assert right > 100
