"""Cards of a compute pool: workers that agents start, here and on other nodes, for one program."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.card.credentials import PROGRAM, WORKER
from penstock.card.frames import KINDS
from penstock.card.link import (
    Agreement,
    CardError,
    CardLink,
    LinkSettings,
    TcpEndpoint,
    UnixEndpoint,
)
from penstock.card.link.issue import issue
from penstock.card.names import POOL, VARIABLE
from penstock.card.places import THIS_NODE, TRIED_S, StartedCard
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.card.link import Endpoint, TlsIdentity
    from penstock.card.places import OnCard

_AGAIN_WITHIN_S = 5.0  # a worker that stands by, on a node that is still there
_AT_FIRST_S = 60.0  # until the pool has said where the application is
RUNNING, ENDS = "running", frozenset({"ending", "lost", "ended"})


@dataclass(frozen=True)
class Phase:
    """An application at a moment: its phase, why, and the cards that it has then."""

    name: str
    reason: str
    cards: tuple[PoolCard, ...]


@dataclass(frozen=True)
class PoolCard:
    """A device of the application on one of its nodes. `blocks`: what it has of it, in TFLOPS."""

    application: PoolApplication
    node: str
    device_uuid: str
    blocks: int
    tried_s: ClassVar[float] = TRIED_S

    def __str__(self) -> str:
        return f"device {self.device_uuid} of node {self.node}"

    def start(self, name: str, on: OnCard) -> StartedCard:
        """See `CardPlace`. Raises `PenstockError` if the worker is not started or not reached."""
        agreement = Agreement.new(self.application.name)
        identities = issue([PROGRAM, WORKER])
        told = self.application.ask({
            "node": self.node, "device_uuid": self.device_uuid, "token": agreement.token.hex(),
            "peer": PROGRAM, **_texts(identities[WORKER]),
        })  # fmt: skip
        # A processor that stands in for a device does not have its speed.
        speed = float(self.blocks) if told["is_stand_in"] else None
        endpoint = _endpoint(told["address"], identities[PROGRAM])
        worker = _PoolWorker(self, endpoint, agreement, told["host"] or THIS_NODE, speed)
        return worker.connect(name, on, LinkSettings())


@dataclass(frozen=True)
class _PoolWorker:
    """The worker of a pool's card, and where the card is started again: another one stands by."""

    card: PoolCard
    endpoint: Endpoint
    agreement: Agreement
    host: str
    speed: float | None
    tried_s: ClassVar[float] = TRIED_S

    def __str__(self) -> str:
        return str(self.card)

    def start(self, name: str, on: OnCard) -> StartedCard:
        """See `CardPlace`. Raises `PenstockError`."""
        with contextlib.suppress(CardError):  # its node is gone, say
            return self.connect(name, on, LinkSettings(connect_s=_AGAIN_WITHIN_S))
        return self.card.start(name, on)

    def connect(self, name: str, on: OnCard, settings: LinkSettings) -> StartedCard:
        """Connects to the worker. Raises `CardError`."""
        link = CardLink(
            name, self.endpoint, self.agreement, kinds=KINDS, settings=settings,
            on_event=on.event, on_fault=on.fault, on_end=on.end,
            log=f"penstock events {self.card.application.name} on node {self.card.node}",
        )  # fmt: skip
        return StartedCard(link, self.host, self.speed, link.close, link.abort, self)


class PoolApplication:
    """The application of a compute pool that this program is; its helper process talks to the pool.

    Attributes:
        name: Of the application.
    """

    def __init__(self, name: str, claimed_ns: int, state_dir: Path | None = None) -> None:
        """Starts the helper. Raises `PenstockError` if it cannot be started."""
        self.name = name
        command = [sys.executable, "-m", "penstock.card.keeper", name, str(claimed_ns)]
        if state_dir is not None:
            command += ["--state-dir", str(state_dir)]
        try:
            self._keeper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise PenstockError("cannot start the helper of the virtual card", str(error),
                                "see whether Python can start") from error  # fmt: skip
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._phase: Phase | None = None
        self._has_ended = False
        threading.Thread(target=self._read, name="penstock-keeper", daemon=True).start()

    @classmethod
    def parse(cls, text: str) -> PoolApplication:
        """The application of a text such as "pool:NAME@NANOSECONDS", with "@FOLDER" after it.

        Raises:
            PenstockError: the text has another form.
        """
        name, _, rest = text.removeprefix(POOL).partition("@")
        claimed, _, folder = rest.partition("@")
        if not name or not claimed.isdecimal():
            raise PenstockError(
                f"invalid ${VARIABLE}: {text[:60]!r}", "it is not pool:NAME@NANOSECONDS",
                "start the program with penstock run --tflops N -- COMMAND",
            )  # fmt: skip
        return cls(name, int(claimed), Path(folder) if folder else None)

    def ask(self, card: dict[str, str]) -> dict[str, Any]:
        """Has a card started; returns where it is. Raises `PenstockError` if it is not."""
        number = next(self._numbers)
        stdin = self._keeper.stdin
        if stdin is None:
            raise AssertionError("it is a pipe")
        with self._changed:
            try:
                stdin.write(json.dumps({"id": number, "card": card}) + "\n")
                stdin.flush()
            except (OSError, ValueError):
                self._has_ended = True
            self._changed.wait_for(lambda: number in self._answers or self._has_ended)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise KeeperEndedError
        if "error" in answer:
            raise PenstockError(**answer["error"], reason="unavailable")
        return dict(answer["started"])

    def phase(self, but: Phase | None = None) -> Phase:
        """The application as it is now; waits for another state than `but`.

        Raises:
            CardError: the application has ended.
            PenstockError: the pool says nothing.
            KeeperEndedError: the helper process has ended.
        """
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: self._has_ended or (self._phase is not None and self._phase != but),
                None if but is not None else _AT_FIRST_S,
            )
            if self._has_ended:
                raise KeeperEndedError
            if self._phase is not None and self._phase.name in ENDS:
                raise self.ended(self._phase.reason or f"it is {self._phase.name}")
            if not is_there or self._phase is None:
                raise PenstockError(
                    f"the pool says nothing of application {self.name}",
                    "this node's agent or the pool's manager does not answer",
                    "see penstock pool status", reason="unavailable",
                )  # fmt: skip
            return self._phase

    def running(self) -> Phase:
        """The application once it runs. Raises `CardError` if it has ended."""
        phase = self.phase()
        while phase.name != RUNNING:
            phase = self.phase(phase)
        return phase

    def ended(self, reason: str) -> CardError:
        """The error of the program once its cards are gone for good."""
        return CardError(f"application {self.name}", "has ended", reason,
                         "start the program again, from its last checkpoint")  # fmt: skip

    def _read(self) -> None:
        for line in self._keeper.stdout or ():
            said = json.loads(line)
            with self._changed:
                if "id" in said:
                    self._answers[said["id"]] = said
                else:
                    cards = (PoolCard(self, **one) for one in said["parts"])
                    self._phase = Phase(said["phase"], said["reason"], tuple(cards))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


def _endpoint(address: str, identity: TlsIdentity) -> Endpoint:
    if address.startswith("/"):
        return UnixEndpoint(Path(address))
    host, _, port = address.rpartition(":")
    return TcpEndpoint(host, int(port), identity, WORKER)


def _texts(identity: TlsIdentity) -> dict[str, str]:
    return {name: getattr(identity, name).decode("ascii")
            for name in ("certificate", "key", "authority")}  # fmt: skip


class KeeperEndedError(PenstockError):
    """The helper process of the virtual card has ended."""

    def __init__(self) -> None:
        super().__init__(
            "the helper process of the virtual card has ended",
            "it was killed, or could not start",
            "start the program again",
            reason="unavailable",
        )
