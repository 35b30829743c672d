"""Spare cards take the places of cards that are lost and do not come back."""

import json
import os
import signal
import threading
from dataclasses import dataclass, replace

import pytest
import torch
from tests.card.support.processes import assert_gone
from tests.card.support.sessions import session_of
from tests.card.support.training import Training, losses_of

from penstock.card import spare_cards
from penstock.card.card_list import card_places
from penstock.card.cards import start_cards
from penstock.card.link import CardError
from penstock.card.local_cards import LocalCard
from penstock.card.places import CardPlace
from penstock.card.spare_cards import Spares

STEPS = 20
NOBODY = "tcp:127.0.0.1:9=1"


@pytest.fixture(autouse=True)
def of_program(monkeypatch, credentials):
    monkeypatch.setenv("PENSTOCK_CARD_CREDENTIALS", str(credentials / "program"))
    monkeypatch.setenv("PENSTOCK_CARD_RECOVERY", "on")
    monkeypatch.setattr(spare_cards, "COMES_WITHIN_S", 0.5)
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def undisturbed():
    torch.set_num_threads(1)
    return losses_of("cpu=1,cpu=1", STEPS)


def lost_for_good(served, session, number):
    """Ends a service whose card the program uses."""
    torch.penstock.synchronize()
    pid = session.cards.cards[number].pid
    served.process.kill()
    served.process.wait()
    assert_gone([pid])


def test_a_spare_card_takes_the_place_of_one_whose_node_is_gone_and_nothing_is_lost(
    serving, undisturbed, monkeypatch, tmp_path
):
    one, other = serving(), serving()
    monkeypatch.setenv("PENSTOCK_CARD_SPARES", other.card)
    monkeypatch.setenv("PENSTOCK_CARD_EVENTS", str(tmp_path / "events"))
    with session_of(f"cpu=1,{one.card}") as session:
        training = Training()
        losses = [training.step() for _ in range(STEPS // 2)]
        lost_for_good(one, session, 1)
        losses += [training.step() for _ in range(STEPS // 2)]
    assert losses == undisturbed
    (event,) = map(json.loads, (tmp_path / "events").read_text().splitlines())
    said = f"card 127.0.0.1:{other.port} has taken the place of card 127.0.0.1:{one.port}"
    assert event["event"] == "card-lost"
    assert event["text"].endswith(said)


def test_a_card_whose_place_was_taken_is_the_next_spare_one(serving, undisturbed, monkeypatch):
    one, other = serving(), serving()
    monkeypatch.setenv("PENSTOCK_CARD_SPARES", other.card)
    with session_of(f"cpu=1,{one.card}") as session:
        training = Training()
        losses = [training.step() for _ in range(STEPS // 3)]
        lost_for_good(one, session, 1)
        losses += [training.step() for _ in range(STEPS // 3)]
        serving(port=one.port)
        lost_for_good(other, session, 1)
        losses += [training.step() for _ in range(STEPS - len(losses))]
    assert losses == undisturbed


def test_a_program_starts_with_a_spare_card_if_one_of_its_cards_is_not_there(monkeypatch):
    monkeypatch.setenv("PENSTOCK_CARD_SPARES", f"{NOBODY},cpu=3")
    cards = start_cards(card_places(f"cpu=1,{NOBODY}"))
    try:
        assert cards.speeds == (1.0, 3.0)
    finally:
        cards.close()


def test_a_card_that_has_no_spare_one_is_named_and_not_the_spare_ones(monkeypatch):
    monkeypatch.setenv("PENSTOCK_CARD_SPARES", "tcp:127.0.0.1:10=1")
    monkeypatch.setenv("PENSTOCK_CARD_WAIT", "1s")
    with pytest.raises(CardError, match=r"127\.0\.0\.1:9"):
        start_cards(card_places(f"cpu=1,{NOBODY}"))


def test_without_a_spare_card_that_starts_the_lost_one_is_waited_for(
    serving, undisturbed, monkeypatch
):
    one = serving()
    monkeypatch.setenv("PENSTOCK_CARD_SPARES", "tcp:127.0.0.1:10=1")
    assert max(place.tried_s for place in card_places(f"cpu=1,{NOBODY}")) == 300
    with session_of(f"cpu=1,{one.card}") as session:
        training = Training()
        losses = [training.step() for _ in range(STEPS // 2)]
        lost_for_good(one, session, 1)
        again = threading.Timer(3.0, serving, kwargs={"port": one.port})  # after all were tried
        again.start()
        losses += [training.step() for _ in range(STEPS // 2)]
        again.join()
    assert losses == undisturbed


def test_a_spare_card_gets_work_by_its_own_speed(undisturbed, monkeypatch, serving):
    one = serving()
    monkeypatch.setenv("PENSTOCK_CARD_SPARES", "cpu=3")
    with session_of(f"cpu=1,{one.card}") as session:
        training = Training()
        losses = [training.step() for _ in range(STEPS // 2)]
        lost_for_good(one, session, 1)
        losses += [training.step() for _ in range(STEPS // 2)]
        assert session.speeds == (1.0, 3.0)
    assert losses == pytest.approx(undisturbed, rel=1e-4)


@dataclass(frozen=True)
class Failing(CardPlace):
    """A card whose worker ends as soon as it is used, once it was lost."""

    card: LocalCard
    starts: list
    tried_s = 60.0

    def start(self, name, on):
        started = self.card.start(name, on)
        self.starts.append(started.pid)
        if len(self.starts) > 1:
            os.kill(started.pid, signal.SIGKILL)
        return replace(started, again=self)


def test_a_card_that_starts_and_is_lost_again_gives_way_to_a_spare_one(undisturbed, monkeypatch):
    place = Failing(LocalCard("cpu", 1.0), [])
    spares = Spares([LocalCard("cpu", 1.0)])
    places = [LocalCard("cpu", 1.0), spares.guard(place)]
    monkeypatch.setattr("tests.card.support.sessions.card_places", lambda _text: places)
    with session_of("cpu=1,cpu=1") as session:
        training = Training()
        losses = [training.step() for _ in range(STEPS // 2)]
        torch.penstock.synchronize()
        os.kill(session.cards.cards[1].pid, signal.SIGKILL)
        assert_gone([session.cards.cards[1].pid])
        losses += [training.step() for _ in range(STEPS // 2)]
    assert losses == undisturbed
    assert 2 <= len(place.starts) <= 3
