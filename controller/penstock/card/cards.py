"""`Cards`: the cards of this program, with their workers."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.card.frames import KINDS, Kind
from penstock.card.link.spawned import spawn
from penstock.card.names import VARIABLE
from penstock.model import PenstockError
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.link.spawned import SpawnedCard


@dataclass(frozen=True)
class CardKind:
    """A card that is to be started: its kind, and its speed if that is known."""

    kind: str
    speed: float = 1.0


@dataclass
class Cards:
    """Started cards, in their order. `speeds` is what they are worth to each other."""

    cards: list[SpawnedCard]
    speeds: tuple[float, ...]
    failures: list[str] = field(default_factory=list)  # what operations reported since last asked

    def close(self) -> None:
        """Ends the workers."""
        for one in self.cards:
            with contextlib.suppress(PenstockError):
                one.close(1.0)


def parse_cards(text: str) -> list[CardKind]:
    """The cards of a list such as "cpu,cpu=2,cuda": kinds, with speeds after "=".

    Raises:
        PenstockError: an item is not of this form.
    """
    kinds = []
    for item in text.split(","):
        kind, _, speed = item.strip().partition("=")
        try:
            value = float(speed) if speed else 1.0
        except ValueError:
            value = 0.0
        if not kind or not 0 < value < float("inf"):
            raise PenstockError(
                f"invalid card {item[:40]!r} in ${VARIABLE}", "it is not a kind, or KIND=SPEED",
                f"write it like {VARIABLE}=cpu,cpu=2",
            )  # fmt: skip
        kinds.append(CardKind(kind, value))
    return kinds


def check_cards() -> list[CardKind]:
    """The cards that this program has. Raises `PenstockError` if there are none."""
    text = os.environ.get(VARIABLE, "")
    if text in {"", "off"}:
        raise PenstockError(
            "this program has no card", f"${VARIABLE} is {text or 'not set'}",
            "start it with penstock run --tflops N -- COMMAND",
        )  # fmt: skip
    return parse_cards(text)


def start_cards() -> Cards:
    """Starts a worker for each card that this program has. Raises `PenstockError`."""
    kinds = check_cards()
    started: list[SpawnedCard] = []
    cards = Cards(started, tuple(one.speed for one in kinds))

    def on_event(card: int) -> Callable[[int, memoryview], None]:
        def event(kind: int, body: memoryview) -> None:
            if kind == Kind.FAILED:
                cards.failures.append(f"card {card}: {bytes(body).decode(errors='replace')}")

        return event

    try:
        for i, one in enumerate(kinds):
            started.append(
                spawn(f"card {i}", "penstock.card.worker", kinds=KINDS,
                      arguments=["--kind", one.kind], on_event=on_event(i))
            )  # fmt: skip
        _set_up(started)
    except BaseException:
        cards.close()
        raise
    atexit.register(cards.close)
    return cards


def _set_up(cards: list[SpawnedCard]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="penstock-card-"))
    try:
        replies = [
            one.link.request(Kind.SET_UP, pb.Setup(
                card=i, cards=len(cards), store=f"file:{folder / 'meeting'}"
            ).SerializeToString())
            for i, one in enumerate(cards)
        ]  # fmt: skip
        for reply in replies:
            reply.result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
