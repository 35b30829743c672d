"""The manager's turn to lead: waits for it, works while it lasts, and gives it up."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.model import PenstockError
from penstock.pool.claims import Claims
from penstock.pool.manager import Manager
from penstock.pool.membership import Membership
from penstock.pool.store import NotLeadingError, Store
from penstock.pool.ticks import PERIOD_S, tick

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.pool.leadership import Leadership
    from penstock.pool.rpc.changes import Changes
    from penstock.pool.settings import Settings

Answer = TypeVar("Answer")
WAITS_S = 1.0  # between attempts to lead
CHECKED_EVERY_S = 2.0


@dataclass(frozen=True)
class Turn:
    """What serves calls while this process leads."""

    manager: Manager
    membership: Membership
    claims: Claims


class Leading:
    """Makes turns. All work on a pool runs in one thread; reading events has its own."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        leadership: Leadership,
        changes: Changes,
        report: Callable[..., None],
    ) -> None:
        self._url = url
        self._settings = settings
        self._leadership = leadership
        self._changes = changes
        self._report = report
        self._decisions = ThreadPoolExecutor(1, "decisions")
        self._readers = ThreadPoolExecutor(2, "readers")
        self._turn: Turn | None = None
        self._store: Store | None = None
        self._leader = ""
        self._problem = ""  # why nobody leads here

    def turn(self) -> Turn:
        """The turn to lead. Raises `PenstockError` naming the leader if it is another's."""
        if self._turn is None:
            raise PenstockError(
                "this manager does not lead the pool",
                f"{self._leader} leads it" if self._leader else self._problem or "it is starting",
                f"ask {self._leader}" if self._leader else "try again soon", reason="unavailable",
            )  # fmt: skip
        return self._turn

    async def do(self, work: Callable[[], Answer]) -> Answer:
        """Runs work on the pool in its thread."""
        try:
            return await asyncio.wrap_future(self._decisions.submit(work))
        except NotLeadingError:
            self._stops("another manager has taken over")
            raise

    def later(self, work: Callable[[], object]) -> None:
        """Runs work on the pool in its thread; nobody waits for it."""

        def quietly() -> None:
            try:
                work()
            except PenstockError as error:
                self._report("failed", reason=str(error))

        self._decisions.submit(quietly)

    async def read(self, work: Callable[[], Answer]) -> Answer:
        """Runs a question to the database beside the work on the pool."""
        return await asyncio.wrap_future(self._readers.submit(work))

    def begin(self) -> None:
        """Leads at once if nobody else does. Raises `PenstockError` if that cannot ever work."""
        if self._leadership.take():
            self._lead()
        else:
            self._ask_who_leads()
            self._report("waiting to lead", leader=self._leader)

    async def run(self) -> None:
        """Leads whenever it can, until it is cancelled."""
        checked_s = failed_s = 0.0
        while True:
            try:
                if self._turn is None:
                    await self.do(self._try)
                else:
                    await self.do(partial(_tick, self._turn))
                    if time.monotonic() - checked_s > CHECKED_EVERY_S:
                        checked_s = time.monotonic()
                        if not await self.read(self._leadership.holds):
                            self._stops("its lock or its database is gone")
            except PenstockError as error:
                self._problem = f"{error.what}: {error.why}"
                if time.monotonic() - failed_s > 10:
                    failed_s = time.monotonic()
                    self._report("failed", reason=str(error))
                await asyncio.sleep(WAITS_S)
            await asyncio.sleep(PERIOD_S if self._turn is not None else WAITS_S)

    def close(self) -> None:
        """Ends this process's turn."""
        if self._turn is not None:
            self._turn.manager.close("the manager stops")
        self._turn = None
        self._decisions.shutdown(wait=True, cancel_futures=True)
        self._readers.shutdown(wait=True, cancel_futures=True)
        if self._store is not None:
            self._store.close()
        self._leadership.give_back()

    def _try(self) -> None:
        if self._leadership.take():
            self._lead()
        else:
            self._ask_who_leads()

    def _ask_who_leads(self) -> None:
        if self._store is None:
            self._store = Store(self._url)
        self._leader = self._store.leads()[0] or "another manager"

    def _lead(self) -> None:
        if self._store is not None:
            self._store.close()
        store = self._store = Store(self._url)
        term = store.lead(self._settings.leader)
        manager = Manager(
            store, self._settings, changed=self._changes.tell, report=self._report
        )  # fmt: skip
        with manager.changing() as registry:
            registry.say("leading", reason=f"{self._settings.leader} leads, term {term}")
        self._problem = ""
        self._turn = Turn(manager, Membership(manager), Claims(manager))

    def _stops(self, why: str) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        self._leader = ""
        self._report("stopped leading", reason=why)
        turn.manager.close(f"this manager does not lead any more: {why}")
        self._leadership.give_back()
        self._changes.tell([""])


def _tick(turn: Turn) -> None:
    tick(turn.manager, turn.membership, turn.claims)
