"""The stream of a claim: answers until the application runs, and withdraws it if nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from penstock.pool.claims import no_such
from penstock.pool.rpc import convert, view
from penstock.pool.rpc.changes import woken
from penstock_api.v1 import pool_pb2 as pb

if TYPE_CHECKING:
    from penstock.model import PenstockError
    from penstock.pool.caller import Caller
    from penstock.pool.claims import Asked
    from penstock.pool.rpc.changes import Changes
    from penstock.pool.rpc.leading import Leading, Turn

Context = Any
LOOKS_EVERY_S = 5.0  # beside being woken: figures in the reason may have changed


class AcquireStream:
    """Serves one call of Acquire."""

    def __init__(self, leading: Leading, turn: Turn, changes: Changes, caller: Caller) -> None:
        self._leading = leading
        self._turn = turn
        self._changes = changes
        self._caller = caller

    async def serve(self, asked: Asked, context: Context) -> None:
        """Claims, and answers until it runs. Raises `PenstockError` if it is refused or ends."""
        name = await self._claim(asked)
        answered = False
        try:
            last = None
            claimed_ns = 0
            with self._changes.of(name) as changed:
                while True:
                    update, claimed_ns, answered = await self._leading.do(
                        lambda since=claimed_ns: self._look(name, since)  # type: ignore[misc]
                    )
                    if update != last:
                        await context.write(update)
                        last = update
                    if answered:
                        return
                    await woken(changed, LOOKS_EVERY_S)
                    self._leading.turn()  # ends with an error if another one leads
        finally:
            self._leading.later(lambda: self._turn.claims.detach(name, answered=answered))

    async def _claim(self, asked: Asked) -> str:
        """Claims; where the call is cancelled meanwhile, its claim is not kept for it."""
        claims = self._turn.claims
        work = self._leading.do(lambda: claims.acquire(asked, self._caller))
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):  # refused: nothing is to be withdrawn
                name = await task
                self._leading.later(lambda: claims.detach(name, answered=False))
            raise

    def _look(self, name: str, claimed_ns: int) -> tuple[pb.AcquireUpdate, int, bool]:
        """What to answer now, and whether that is the last answer."""
        manager = self._turn.manager
        with manager.reading() as registry:
            one = registry.holdings.get(name)
            if one is None or (claimed_ns and one.claimed_ns != claimed_ns):
                raise self._end(name)
            shown = view.application(manager, one)
            update = pb.AcquireUpdate(application=shown, reason=shown.reason)
            if not one.until_revoked and not one.holder_node:
                convert.set_duration(update.lease, manager.settings.lease_ns)
            return update, one.claimed_ns, one.state == "running"

    def _end(self, name: str) -> PenstockError:
        return self._turn.manager.end_of(name) or no_such(name)
