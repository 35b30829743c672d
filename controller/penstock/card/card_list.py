"""Card list: the cards of this program, as its environment lists them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.card.kinds import kind_and_number
from penstock.card.local_cards import LocalCard
from penstock.card.names import SPARES_VARIABLE, TCP, VARIABLE, cards_text
from penstock.card.served_cards import ServedCard, own_address
from penstock.card.spare_cards import Spares
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.card.places import CardPlace


def check_cards() -> str:
    """The cards of this program, as `VARIABLE` lists them. Raises `PenstockError` if none."""
    text = cards_text()
    if not text:
        raise PenstockError(
            "this program has no card", f"${VARIABLE} is {os.environ.get(VARIABLE) or 'not set'}",
            "start it with penstock run --tflops N -- COMMAND",
        )  # fmt: skip
    return text


def parse_cards(text: str) -> list[LocalCard | ServedCard]:
    """The cards of a list such as "cpu=1,cpu=2@64000000": KIND=SPEED@BYTES, or tcp:HOST:PORT=SPEED.

    Cards without speeds are measured; the bytes are a simulated limit of a card's memory.

    Raises:
        PenstockError: an item is not of this form, or some cards have a speed and others none.
    """
    cards = [_parse(item.strip()) for item in text.split(",")]
    if len({one.speed is None for one in cards}) > 1:
        raise PenstockError(
            f"invalid ${VARIABLE}", "some cards have a speed and others have none",
            f"write all speeds, like {VARIABLE}=cpu=1,cpu=2, or none, and they are measured",
        )  # fmt: skip
    return cards


def card_places(text: str) -> list[CardPlace]:
    """Where the cards of a list are started, with the spare ones that the environment lists.

    Raises:
        PenstockError: an item is wrong, or some cards have a speed and others none.
    """
    spares_text = os.environ.get(SPARES_VARIABLE, "")
    cards = parse_cards(text)
    every = with_addresses(parse_cards(f"{text},{spares_text}") if spares_text else cards)
    spares = Spares(every[len(cards) :])
    return [spares.guard(one) for one in every[: len(cards)]]


def with_addresses(cards: list[LocalCard | ServedCard]) -> list[LocalCard | ServedCard]:
    """The cards, of which those of other nodes reach those of this node."""
    elsewhere = [one for one in cards if isinstance(one, ServedCard)]
    if not elsewhere:
        return cards
    host = own_address(elsewhere[0])
    return [replace(one, host=host) if isinstance(one, LocalCard) else one for one in cards]


def _parse(item: str) -> LocalCard | ServedCard:
    head, _, limit = item.partition("@")
    kind, _, speed = head.partition("=")
    try:
        value = float(speed) if speed else None
        memory_bytes = int(limit) if limit else None
    except ValueError:
        value, memory_bytes = 0.0, None
    is_valid = value is None or 0 < value < float("inf")
    if not kind or not is_valid or (memory_bytes is not None and memory_bytes <= 0):
        raise PenstockError(
            f"invalid card {item[:40]!r} in ${VARIABLE}", "it is not KIND, KIND=SPEED, KIND@BYTES "
            "or KIND=SPEED@BYTES with a speed and whole bytes above 0",
            f"write it like {VARIABLE}=cpu,cpu or {VARIABLE}=cpu=1,cpu=2",
        )  # fmt: skip
    if kind.startswith(TCP):
        return ServedCard.parse(kind, value, has_limit=memory_bytes is not None)
    kind_and_number(kind)
    return LocalCard(kind, value, memory_bytes)
