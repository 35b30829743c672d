"""Fields of a training job's document that several of its sections have."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints

from penstock.model import PenstockError, parse_duration_ns
from penstock.model.address import read_address

NAME = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"


class Strict(BaseModel):
    """A section in which keys that it does not know are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _duration(value: object) -> str:
    """A time with its unit, as it was written. Raises `ValueError`."""
    parse_duration_ns(value)
    return str(value)


def _address(text: str) -> str:
    """An address that alarms can be sent to. Raises `ValueError`."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{text[:60]!r} is no address: write https://HOST/PATH")
    return text


def _below(text: str) -> str:
    """A path in the folder where the program runs. Raises `ValueError`."""
    path = PurePath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{text[:60]!r} is not below the folder where the program runs")
    return text


def _listener(text: str) -> str:
    """HOST:PORT. Raises `ValueError`."""
    try:
        read_address(text)
    except PenstockError as error:
        raise ValueError(str(error)) from None
    return text


def _card(value: object) -> str:
    """One card as in $PENSTOCK_CARD. Raises `ValueError`."""
    from penstock.card.card_list import parse_cards
    from penstock.card.names import VARIABLE

    text = str(value)
    try:
        (card,) = parse_cards(text)
    except ValueError:
        raise ValueError(f"{text!r} is several cards: write each as an item of the list") from None
    except PenstockError as error:
        what = error.what.replace(f" in ${VARIABLE}", "")
        raise ValueError(f"{what}: {error.why}") from None
    del card
    return text


Name = Annotated[str, StringConstraints(pattern=NAME)]
Duration = Annotated[str, BeforeValidator(_duration)]
Address = Annotated[str, AfterValidator(_address)]
Below = Annotated[str, AfterValidator(_below)]
Listener = Annotated[str, AfterValidator(_listener)]
Card = Annotated[str, BeforeValidator(_card)]
