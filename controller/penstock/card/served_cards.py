"""Served cards: workers that wait for the program at an address (`penstock card serve`)."""

from __future__ import annotations

import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.card.credentials import SERVED, WORKER, Credentials
from penstock.card.frames import KINDS, Kind
from penstock.card.link import Agreement, CardLink, LinkSettings, TcpEndpoint
from penstock.card.names import CREDENTIALS_VARIABLE, TCP, WAIT_VARIABLE
from penstock.card.places import TRIED_S, StartedCard
from penstock.model import PenstockError, parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.card.places import OnCard

COMES_WITHIN_S = 300.0  # a worker that was not started yet, or is moved to another node
DISMISSED_WITHIN_S = 5.0


@dataclass(frozen=True)
class ServedCard:
    """A card at HOST:PORT.

    Attributes:
        speed: What it is worth to the others; None: all are measured.
        within_s: For how long it is waited for; None: as the environment says.
    """

    host: str
    port: int
    speed: float | None = None
    within_s: float | None = None

    def __str__(self) -> str:
        return f"card {self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, speed: float | None, *, has_limit: bool) -> ServedCard:
        """The card of a text such as tcp:HOST:PORT. Raises `PenstockError` if it is none."""
        host, colon, port = text.removeprefix(TCP).rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
        if not (host and colon and is_port) or has_limit:
            raise PenstockError(
                f"invalid card {text[:80]!r}",
                "what serves a card has its limit" if has_limit else "it is not tcp:HOST:PORT",
                "write it like tcp:gpu1.example:7700",
            )
        return cls(host, int(port), speed)

    @property
    def tried_s(self) -> float:
        """See `CardPlace`: another card may be lost while one is waited for."""
        return max(TRIED_S, comes_within_s())

    def start(self, name: str, on: OnCard) -> StartedCard:
        """See `CardPlace`. Raises `PenstockError` if the worker is not reached."""
        credentials = Credentials.read(_folder(os.environ))
        within_s = comes_within_s() if self.within_s is None else self.within_s
        link = CardLink(
            name, TcpEndpoint(self.host, self.port, credentials.identity, WORKER),
            Agreement(SERVED, credentials.token), kinds=KINDS,
            settings=LinkSettings(connect_s=within_s), on_event=on.event,
            on_fault=on.fault, on_end=on.end,
            log=f"what penstock card serve wrote at {self.host}:{self.port}",
        )  # fmt: skip
        with _reaching(self) as (_, address):
            host = str(address[0])
        return StartedCard(link, host, self.speed, link.close, link.abort, self)


def comes_within_s() -> float:
    """For how long a card is waited for. Raises `PenstockError` if the environment has no time."""
    text = os.environ.get(WAIT_VARIABLE, "")
    try:
        return parse_duration_ns(text) / 1e9 if text else COMES_WITHIN_S
    except ValueError as error:
        raise PenstockError(
            f"invalid ${WAIT_VARIABLE}", str(error), f"write {WAIT_VARIABLE}=1h"
        ) from error  # fmt: skip


def dismiss(cards: Sequence[ServedCard], environment: Mapping[str, str]) -> list[str]:
    """Tells cards that the run is over for which they wait (`penstock card serve --once`).

    `environment`: the program's, which names its credentials. Returns a sentence for each card that
    could not be told.
    """

    def tell(card: ServedCard) -> str:
        try:
            credentials = Credentials.read(_folder(environment))
            link = CardLink(
                str(card), TcpEndpoint(card.host, card.port, credentials.identity, WORKER),
                Agreement(SERVED, credentials.token), kinds=KINDS,
                settings=LinkSettings(connect_s=DISMISSED_WITHIN_S),
            )  # fmt: skip
            try:
                link.request(Kind.DISMISS).result(DISMISSED_WITHIN_S)
            finally:
                link.close(1.0)
        except PenstockError as error:
            return f"{card} was not told that the run is over: {error}"
        return ""

    if not cards:
        return []
    with ThreadPoolExecutor(len(cards)) as threads:
        return [one for one in threads.map(tell, cards) if one]


def own_address(card: ServedCard) -> str:
    """The address of this node from which it reaches a card. Raises `PenstockError`."""
    with _reaching(card) as (family, address), socket.socket(family, socket.SOCK_DGRAM) as one:
        one.connect(address)  # nothing is sent
        return str(one.getsockname()[0])


@contextlib.contextmanager
def _reaching(card: ServedCard) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The family and the address of a card's node. Raises `PenstockError`."""
    try:
        found = socket.getaddrinfo(card.host, card.port, type=socket.SOCK_STREAM)[0]
        yield found[0], found[4]
    except OSError as error:
        raise PenstockError(
            f"{card} cannot be reached", error.strerror or str(error),
            "see whether the name and the network are right", reason="unavailable",
        ) from error  # fmt: skip


def _folder(environment: Mapping[str, str]) -> Path:
    text = environment.get(CREDENTIALS_VARIABLE, "")
    if not text:
        raise PenstockError(
            "a card at an address needs credentials", f"${CREDENTIALS_VARIABLE} is not set",
            "make them with penstock card credentials FOLDER, and name FOLDER/program there",
        )  # fmt: skip
    return Path(text)
