"""`Publisher`: writes the program's figures about once a second, for `penstock card top`."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.card import published, runtime_folder
from penstock.card.device import steps
from penstock.card.device.warn import warn
from penstock.card.frames import Figures, Kind, unpack_figures
from penstock.card.link import CardError, OperationError
from penstock.card.published import MOST_COSTS, CardFigures, CostFigures, ProgramFigures
from penstock.model import PenstockError

if TYPE_CHECKING:
    from penstock.card.device.passes import Passes
    from penstock.card.device.session import Session
    from penstock.card.link import CardLink, Reply

PERIOD_S = 1.0
FIRST_S = 0.25
_ANSWERS_WITHIN_S = 0.5  # a card answers between operations; if it does not, the last figures stay
_MOST_COMMAND = 256  # characters
_RATE_PERIODS = 10  # samples a second are those of so many periods: a step may take longer than one


class _Watched:
    """A card with its last two figures."""

    def __init__(self, link: CardLink) -> None:
        self.link = link
        self.former = self.last = Figures(*(0 for _ in Figures._fields))
        self.answered_s = time.monotonic()
        self._reply: Reply | None = None

    def ask(self) -> None:
        """Asks for figures, unless the answer to the last question is still to come."""
        if self._reply is None:
            self._reply = self.link.request(Kind.FIGURES)

    def take(self, deadline_s: float) -> None:
        """Takes the answer if it comes in time. Raises `CardError`."""
        while self._reply is not None and not self._reply.is_done:
            if time.monotonic() > deadline_s:
                return
            time.sleep(0.002)
        if self._reply is None:
            return
        reply, self._reply = self._reply, None
        with contextlib.suppress(OperationError):
            self.former, self.last = self.last, unpack_figures(reply.result())
            self.answered_s = time.monotonic()


class _Seen(NamedTuple):
    """What was seen of a program's batches at a time."""

    at_s: float
    samples: tuple[int, ...]
    unknown: int


class _Batches:
    """The rows of a program's batches, and how many it has a second."""

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=_RATE_PERIODS)

    def see(self, passes: Passes, now_s: float) -> None:
        """Takes what is known now."""
        if self._seen and len(self._seen[-1].samples) != len(passes.samples):
            self._seen.clear()  # the first batch, or other cards
        self._seen.append(_Seen(now_s, passes.samples, passes.unknown))

    def rates(self) -> tuple[float, ...] | None:
        """Of each card; None: not all batches of the last seconds are known, or there were none."""
        first, last = self._seen[0], self._seen[-1]
        if not last.samples or last.unknown != first.unknown or last.at_s <= first.at_s:
            return None
        pairs = zip(first.samples, last.samples, strict=True)
        return tuple((late - early) / (last.at_s - first.at_s) for early, late in pairs)


class Publisher:
    """Asks the cards for their figures and writes them, in a thread of its own.

    It never disturbs the program: what fails here is only warned of.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pid = os.getpid()
        self._began_s = time.monotonic()
        self._cards: list[_Watched] = []
        self._folder = -1
        self._first_steps = steps.count
        self._former = (self._began_s, steps.count, 0)
        self._batches = _Batches()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-figures", daemon=True)

    def start(self) -> None:
        """Begins to publish until the program ends."""
        try:
            self._folder = runtime_folder.open_own()
        except PenstockError as error:
            warn(f"penstock card top will not show this program: {error}")
            return
        atexit.register(self._end)
        self._thread.start()

    def _run(self) -> None:
        wait_s, problem = FIRST_S, ""
        while not problem and not self._is_over.wait(wait_s):
            wait_s = PERIOD_S
            try:
                self._ask()
            except CardError as error:
                if self._session.stream.may_go_on:  # the next call starts the cards again
                    continue
                problem = str(self._session.cards.cause(error))
            try:
                published.write(self._folder, self._program(problem))
            except OSError as error:
                warn(f"penstock card top shows this program no more: {error.strerror or error}")
                return

    def _ask(self) -> None:
        """Raises `CardError` if a card is lost."""
        links = self._session.stream.links
        if [one.link for one in self._cards] != links:  # at the start, and after a move
            self._cards = [_Watched(one) for one in links]
        for card in self._cards:
            card.ask()
        deadline_s = time.monotonic() + _ANSWERS_WITHIN_S
        for card in self._cards:
            card.take(deadline_s)

    def _program(self, problem: str) -> ProgramFigures:
        now_s, waited_ns = time.monotonic(), self._session.stream.waited_ns
        before_s, before_steps, before_ns = self._former
        self._former = (now_s, steps.count, waited_ns)
        period_s = now_s - before_s
        waited_percent = (waited_ns - before_ns) / 1e7 / period_s
        passes, recovery = self._session.passes, self._session.stream.recovery
        passes.read_loss()
        self._batches.see(passes, now_s)
        rates = self._batches.rates()
        is_finite = passes.loss is None or math.isfinite(passes.loss)
        return ProgramFigures(
            pid=self._pid,
            started_ticks=published.started_ticks(self._pid) or 0,
            command=_command(),
            written_s=time.time(),
            running_s=now_s - self._began_s,
            steps=steps.count - self._first_steps,
            steps_per_s=(steps.count - before_steps) / period_s,
            operations_per_s=max(map(_operations_per_s, self._cards), default=0.0),
            waited_s=waited_ns / 1e9,
            waited_percent=min(100.0, waited_percent),
            problem=problem,
            loss=passes.loss if is_finite else None,
            loss_step=max(0, passes.loss_step - self._first_steps),
            is_loss_finite=is_finite,
            samples=None if passes.unknown or not passes.total else passes.total,
            samples_per_s=None if rates is None else sum(rates),
            is_sharded=self._session.sharding.is_on,
            copy_bytes=None if recovery is None else recovery.copy_bytes,
            copy_age_s=None if recovery is None else now_s - recovery.copied_s,
            user=os.geteuid(),
            cards=self._card_figures(now_s, rates),
            costs=self._costs(),
        )

    def _card_figures(self, now_s: float, rates: tuple[float, ...] | None) -> list[CardFigures]:
        speeds = self._session.speeds
        if len(speeds) != len(self._cards):
            return []  # the program is just moving to other cards
        busy_ns = [one.last.busy_ns - one.former.busy_ns for one in self._cards]
        found = [
            _figures(f"{i} {card.link.worker}", card, speed, speed / sum(speeds),
                     busy / max(1, sum(busy_ns)), now_s)
            for i, (card, speed, busy) in enumerate(zip(self._cards, speeds, busy_ns, strict=True))
        ]  # fmt: skip
        rows = self._session.passes.rows
        for i, one in enumerate(found):
            one.rows = rows[i] if rows is not None and len(rows) == len(found) else None
            one.samples_per_s = rates[i] if rates is not None and len(rates) == len(found) else None
        return found

    def _costs(self) -> list[CostFigures]:
        costs = sorted(
            self._session.planner.costs.all(), key=lambda one: (-one.waited_ns, -one.size_bytes)
        )
        by_bytes = sorted(costs, key=lambda one: (-one.size_bytes, -one.count))
        chosen = dict.fromkeys([*by_bytes[: MOST_COSTS // 2], *costs[: MOST_COSTS // 2]])
        return [
            CostFigures(one.line.what, one.operation, one.reason, str(one.line.source or ""),
                        one.count, one.size_bytes, one.waited_ns / 1e9)
            for one in chosen if one.is_worth_telling
        ]  # fmt: skip

    def _end(self) -> None:
        """The program ends. A forked child of it, which ends as well, leaves the file alone."""
        if os.getpid() != self._pid:
            return
        self._is_over.set()
        self._thread.join(2 * _ANSWERS_WITHIN_S)
        published.remove(self._folder, self._pid)


def _operations_per_s(card: _Watched) -> float:
    passed_ns = card.last.at_ns - card.former.at_ns
    if not card.former.at_ns or passed_ns <= 0:
        return 0.0
    return (card.last.operations - card.former.operations) * 1e9 / passed_ns


def _figures(
    name: str, card: _Watched, speed: float, share: float, work: float, now_s: float
) -> CardFigures:
    last, former = card.last, card.former
    busy_ns, cards_ns, program_ns = (last.busy_ns - former.busy_ns,
                                     last.exchanging_ns - former.exchanging_ns,
                                     last.idle_ns - former.idle_ns)  # fmt: skip
    percent = 100 / max(1, busy_ns + cards_ns + program_ns)
    age_s = now_s - card.answered_s
    return CardFigures(
        name=name,
        speed=speed,
        share=share,
        work=work,
        busy_percent=busy_ns * percent,
        cards_percent=cards_ns * percent,
        program_percent=program_ns * percent,
        busy_s=last.busy_ns / 1e9,
        cards_s=last.exchanging_ns / 1e9,
        program_s=last.idle_ns / 1e9,
        operations=last.operations,
        uploaded_bytes=last.uploaded_bytes,
        downloaded_bytes=last.downloaded_bytes,
        gathers=last.gathers,
        gathered_bytes=last.gathered_bytes,
        sums=last.sums,
        summed_bytes=last.summed_bytes,
        used_bytes=last.used_bytes,
        peak_bytes=last.peak_bytes,
        total_bytes=last.total_bytes,
        age_s=age_s,
        node=card.link.worker.node,
        kind=card.link.worker.device,
        doing=str(card.link.progress) if age_s > PERIOD_S else "",
    )


def _command() -> str:
    words = [Path(sys.executable).name, *sys.argv]
    return " ".join(words)[:_MOST_COMMAND]
