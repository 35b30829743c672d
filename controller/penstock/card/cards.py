"""`Cards`: the cards of this program, with their workers."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.card.failures import Failures
from penstock.card.frames import KINDS, Kind
from penstock.card.link import CardError
from penstock.card.link.spawned import spawn
from penstock.card.names import VARIABLE
from penstock.card.speeds import measure
from penstock.model import PenstockError
from penstock_api.v1 import card_ops_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from penstock.card.link import OperationError
    from penstock.card.link.spawned import SpawnedCard


OTHERS_S = 0.5  # until the end of a process is known to the program, at the latest


@dataclass(frozen=True)
class CardKind:
    """A card that is to be started.

    Attributes:
        kind: The name of its adapter.
        speed: What it is worth to the others; None: all are measured.
        memory_bytes: A simulated limit of its memory.
    """

    kind: str
    speed: float | None = None
    memory_bytes: int | None = None

    @property
    def arguments(self) -> list[str]:
        """The worker's arguments."""
        limit = [] if self.memory_bytes is None else ["--memory-bytes", str(self.memory_bytes)]
        return ["--kind", self.kind, *limit]


class Cards:
    """Started cards, in their order.

    If one is lost, all are ended: what is left of the program's tensors on the others is of no use,
    and some may wait for the lost one.

    Attributes:
        speeds: What they are worth to each other.
        failures: What has failed on them.
    """

    def __init__(self) -> None:
        self.cards: list[SpawnedCard] = []
        self.speeds: tuple[float, ...] = ()
        self.failures = Failures()
        self._is_closed = False

    def start(self, kinds: Sequence[CardKind]) -> None:
        """Starts the workers and brings them together. Raises `PenstockError`."""
        try:
            # Each loads torch first, which takes seconds, so they do it at the same time.
            with ThreadPoolExecutor(len(kinds)) as threads:
                names = [f"card {i}" for i in range(len(kinds))]
                futures = [
                    threads.submit(self._spawn, *one) for one in zip(names, kinds, strict=True)
                ]
            self.cards = [one for one in map(_started, futures) if one is not None]
            for future in futures:
                future.result()
            _set_up(self.cards)
        except CardError as error:
            self.close()
            raise self.cause(error) from error
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    def _spawn(self, name: str, kind: CardKind) -> SpawnedCard:
        def on_event(event: int, body: memoryview) -> None:
            if event == Kind.FAILED:
                self.failures.add(name, body)

        def on_fault(error: OperationError) -> None:
            # It has left out calls, so it is not in step with the others any more. The reason may
            # be that another card has gone, which is then known by the end of this time.
            why = f"it could not execute what the program sent: {error}"
            later = threading.Timer(OTHERS_S, card.link.lose, (why,))
            later.daemon = True
            later.start()

        card = spawn(name, "penstock.card.worker", kinds=KINDS, arguments=kind.arguments,
                     on_event=on_event, on_fault=on_fault, on_end=self._on_end)  # fmt: skip
        return card

    def _on_end(self, error: CardError) -> None:
        if self._is_closed or not self.failures.lose(error):
            return
        for one in self.cards:
            one.link.abort()
        threading.Thread(target=self._kill, name="penstock-end", daemon=True).start()

    def _kill(self) -> None:
        for one in self.cards:
            one.kill()

    def cause(self, error: CardError) -> CardError:
        """The error that led to this one: the loss of a card ends the others."""
        return error if self.failures.lost is None else self.failures.lost.again()

    def measured_speeds(self) -> tuple[float, ...]:
        """What the cards are worth to each other now; takes a second. Raises `CardError`."""
        return measure([one.link for one in self.cards]) if len(self.cards) > 1 else (1.0,)

    def close(self) -> None:
        """Ends the workers."""
        self._is_closed = True
        atexit.unregister(self.close)
        for one in self.cards:
            with contextlib.suppress(PenstockError):
                one.close(1.0)


def parse_cards(text: str) -> list[CardKind]:
    """The cards of a list such as "cpu,cpu=2,cpu=2@64000000": KIND=SPEED@BYTES.

    Cards without speeds are measured; the bytes are a simulated limit of a card's memory.

    Raises:
        PenstockError: an item is not of this form, or some cards have a speed and others none.
    """
    kinds = [_parse(item.strip()) for item in text.split(",")]
    if len({one.speed is None for one in kinds}) > 1:
        raise PenstockError(
            f"invalid ${VARIABLE}", "some cards have a speed and others have none",
            f"write all speeds, like {VARIABLE}=cpu=1,cpu=2, or none, and they are measured",
        )  # fmt: skip
    return kinds


def _parse(item: str) -> CardKind:
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
            f"invalid card {item[:40]!r} in ${VARIABLE}", "it is not KIND, KIND=SPEED or "
            "KIND=SPEED@BYTES", f"write it like {VARIABLE}=cpu,cpu=2",
        )  # fmt: skip
    return CardKind(kind, value, memory_bytes)


def check_cards() -> list[CardKind]:
    """The cards that this program has. Raises `PenstockError` if there are none."""
    text = os.environ.get(VARIABLE, "")
    if text in {"", "off"}:
        raise PenstockError(
            "this program has no card", f"${VARIABLE} is {text or 'not set'}",
            "start it with penstock run --tflops N -- COMMAND",
        )  # fmt: skip
    return parse_cards(text)


def start_cards(kinds: Sequence[CardKind] | None = None) -> Cards:
    """Starts a worker for each card, or for each that this program has. Raises `PenstockError`."""
    kinds = check_cards() if kinds is None else kinds
    cards = Cards()
    cards.start(kinds)
    given = [one.speed for one in kinds if one.speed is not None]
    try:
        cards.speeds = tuple(given) if len(given) == len(kinds) else cards.measured_speeds()
    except CardError as error:
        cards.close()
        raise cards.cause(error) from error
    except BaseException:
        cards.close()
        raise
    return cards


def _started(future: Future[SpawnedCard]) -> SpawnedCard | None:
    return None if future.exception() is not None else future.result()


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
