"""A card that is lost comes back with what was on it, and the program notices only a pause."""

import os
import random
import signal
import threading
import time

import pytest
import torch
from tests.card.support.processes import assert_gone
from tests.card.support.sessions import session_of
from tests.card.support.training import Training, losses_of

from penstock.card.device import recovery

CARDS = "cpu=1,cpu=2"
MOMENTS = int(os.environ.get("PENSTOCK_TEST_MOMENTS", "20"))
STEPS = 20


@pytest.fixture(autouse=True)
def recovering(monkeypatch):
    monkeypatch.setenv("PENSTOCK_CARD_RECOVERY", "on")
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def undisturbed():
    torch.set_num_threads(1)
    return losses_of(CARDS, STEPS)


def lose(pid, number, after_s):
    """Kills or stops a worker after a while, beside the program."""

    def run():
        time.sleep(after_s)
        os.kill(pid, number)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_training_that_loses_a_card_at_any_moment_has_the_same_losses(
    undisturbed, moment, monkeypatch
):
    chance = random.Random(moment)  # noqa: S311 - a moment, the same in each run
    monkeypatch.setattr(recovery, "LEAST_PERIOD_S", chance.choice([0.0, 0.05, 5.0]))
    with session_of(CARDS) as session:
        pids = [one.pid for one in session.cards.cards]
        number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        thread = lose(chance.choice(pids), number, 1.5 * chance.random())
        training = Training()
        losses = [training.step() for _ in range(STEPS)]
        while thread.is_alive():
            training = Training()
            losses = [training.step() for _ in range(STEPS)]
        again = Training()
        assert losses == undisturbed
        assert [again.step() for _ in range(STEPS)] == undisturbed
        assert_gone(pids)
