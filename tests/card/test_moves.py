"""A program moves to other cards between its steps and within them: the training goes on."""

import os

import pytest

os.environ.setdefault("PENSTOCK_CARD", "cpu=1,cpu=2,cpu=4")

import torch
from tests.card.support.sessions import session_of
from tests.card.support.training import Training, losses_of

from penstock.card.cards import parse_cards

STEPS = 9
CARDS = "cpu=1,cpu=2,cpu=4"


@pytest.fixture(scope="module")
def undisturbed():
    torch.set_num_threads(1)
    return losses_of(CARDS, STEPS)


def close(losses, expected):
    return losses == pytest.approx(expected, rel=1e-6)


def test_a_training_goes_on_after_shrinking_and_growing(undisturbed):
    with session_of(CARDS) as session:
        training, losses = Training(), []
        for step in range(STEPS):
            if step == 3:
                session.replace_cards(parse_cards("cpu=1,cpu=3"))
            if step == 6:
                session.replace_cards(parse_cards("cpu=1,cpu=3,cpu=1,cpu=2"))
            losses.append(training.step())
    assert close(losses, undisturbed)


def test_new_processes_of_the_same_speeds_give_the_same_bits(undisturbed):
    with session_of(CARDS) as session:
        training, losses = Training(), []
        for step in range(STEPS):
            if step == 4:
                session.replace_cards(parse_cards(CARDS))
            losses.append(training.step())
    assert losses == undisturbed
