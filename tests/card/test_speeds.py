"""Speeds of cards: given by the program's starter, or measured on all cards at the same time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.card.support.sessions import session_of

from penstock.card.card_list import parse_cards
from penstock.card.local_cards import LocalCard
from penstock.card.speeds import measure, relative_speeds
from penstock.model import PenstockError

RATES = st.floats(1e3, 1e15)


def test_cards_without_speeds_are_measured():
    with session_of("cpu,cpu") as session:
        assert max(session.speeds) == 1
        assert min(session.speeds) > 0
        again = measure([one.link for one in session.cards.cards], 0.01)
        session.set_speeds(again)
        import torch

        assert torch.ones(8, device="penstock").sum().item() == 8


@given(st.lists(st.tuples(RATES, RATES), min_size=1, max_size=5))
def test_the_fastest_card_is_worth_one_and_none_is_worth_nothing(rates):
    speeds = relative_speeds(rates)
    assert max(speeds) == 1
    assert min(speeds) > 0
    assert len(speeds) == len(rates)


def test_a_card_of_half_the_rates_is_worth_half():
    assert relative_speeds([(2e9, 4e9), (1e9, 2e9)]) == (1, 0.5)


def test_speeds_and_limits_are_read():
    assert parse_cards("cpu=2, cuda=0.5@64000") == [
        LocalCard("cpu", 2.0), LocalCard("cuda", 0.5, 64000),
    ]  # fmt: skip
    assert parse_cards("cpu,cpu@5") == [LocalCard("cpu"), LocalCard("cpu", None, 5)]


@pytest.mark.parametrize(
    "text", ["", "cpu,", "cpu=0", "cpu=-1", "cpu=x", "cpu=inf", "cpu=nan", "=1", "cpu@0", "cpu@x"]
)
def test_an_invalid_card_is_named(text):
    with pytest.raises(PenstockError, match=r"invalid card .* in \$PENSTOCK_CARD"):
        parse_cards(text)


def test_speeds_are_given_for_all_cards_or_for_none():
    with pytest.raises(PenstockError, match="some cards have a speed"):
        parse_cards("cpu=1,cpu")
