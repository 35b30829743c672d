"""Thread pools for requests, with a limit per caller so that no caller delays another."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.node.agent import Principal

Answer = TypeVar("Answer")
Lane = Literal["order", "query"]  # a query reads all tenants, an order changes one
LANES: tuple[Lane, ...] = ("order", "query")
THREADS: dict[Lane, int] = {"order": 8, "query": 2}  # shared by all users
ADMINS_THREADS: dict[Lane, int] = {"order": 8, "query": 2}
# Concurrent requests of one caller. Its further requests wait, without delaying other callers.
AT_ONCE: dict[Lane, int] = {"order": 2, "query": 1}
ADMINS_AT_ONCE: dict[Lane, int] = {"order": 8, "query": 2}


class Turns:
    """Runs requests, administrators' in threads of their own. For the server's event loop only."""

    def __init__(self) -> None:
        self._users = {one: ThreadPoolExecutor(THREADS[one], one) for one in LANES}
        self._admins = {
            one: ThreadPoolExecutor(ADMINS_THREADS[one], f"admins-{one}") for one in LANES
        }
        self._turns: dict[tuple[int | str, Lane], asyncio.Semaphore] = {}
        self._holders: Counter[tuple[int | str, Lane]] = Counter()  # including waiting calls

    async def carry_out(self, caller: Principal, lane: Lane, order: Callable[[], Answer]) -> Answer:
        """The request's result or exception. A started request keeps its thread to the end."""
        threads = (self._admins if caller.is_admin else self._users)[lane]
        most = (ADMINS_AT_ONCE if caller.is_admin else AT_ONCE)[lane]
        key = (caller.person, lane)
        turn = self._turns.setdefault(key, asyncio.Semaphore(most))
        self._holders[key] += 1
        try:
            await turn.acquire()
        except BaseException:
            self._leave(key)
            raise

        def is_done(done: asyncio.Future[Answer]) -> None:
            turn.release()
            self._leave(key)
            if not done.cancelled():
                done.exception()  # retrieve the exception, in case nobody awaits it

        running = asyncio.get_running_loop().run_in_executor(threads, order)
        running.add_done_callback(is_done)
        return await asyncio.shield(running)

    def _leave(self, key: tuple[int | str, Lane]) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key], self._turns[key]
