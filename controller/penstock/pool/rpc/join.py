"""The stream of a node: its reports in, its orders out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from penstock.model import PenstockError
from penstock.pool.rpc.convert import orders_to, report_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.pool.orders import Orders
    from penstock.pool.rpc.leading import Leading, Turn
    from penstock_api.v1 import pool_pb2 as pb

Context = Any
FIRST_WITHIN_S = 10.0


class StreamLink:
    """A node's connection: keeps the newest orders until they are sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._newest: Orders | None = None
        self._came = asyncio.Event()
        self.ended = ""

    def send(self, orders: Orders) -> None:
        """See `Link`."""
        self._loop.call_soon_threadsafe(self._put, orders)

    def close(self, reason: str) -> None:
        """See `Link`."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._end, reason)

    async def next(self) -> Orders | None:
        """The next orders; None: the connection ends."""
        await self._came.wait()
        self._came.clear()
        orders, self._newest = self._newest, None
        if orders is None and self.ended:
            self._came.set()
        return orders

    def _put(self, orders: Orders) -> None:
        self._newest = orders
        self._came.set()

    def _end(self, reason: str) -> None:
        self.ended = self.ended or reason
        self._came.set()


class NodeStream:
    """Serves one node until its stream ends."""

    def __init__(self, leading: Leading, turn: Turn, context: Context) -> None:
        self._leading = leading
        self._turn = turn
        self._context = context
        self._link = StreamLink(asyncio.get_running_loop())

    async def serve(
        self,
        reports: AsyncIterator[pb.NodeReport],
        identify: Any,  # noqa: ANN401 - Callers.node
    ) -> None:
        """Lets the node join, and passes orders on. Raises `PenstockError` if it may not."""
        message = await asyncio.wait_for(anext(reports), FIRST_WITHIN_S)
        first = report_of(message)
        peer = identify(self._context, first.node)
        membership = self._turn.membership
        why = await self._leading.do(lambda: membership.open(self._link, first, peer.address))
        if why:
            orders = await self._link.next()
            if orders is not None:
                await self._context.write(orders_to(orders))
            return
        reading = asyncio.ensure_future(self._read(reports, first.node))
        waiting: asyncio.Future[Orders | None] | None = None
        try:
            while True:
                waiting = asyncio.ensure_future(self._link.next())
                await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    await reading  # its error, if it failed
                    return
                orders = waiting.result()
                if orders is not None:
                    await self._context.write(orders_to(orders))
                elif self._link.ended:
                    raise PenstockError(
                        "the node's connection was ended", self._link.ended, "connect again",
                        reason="unavailable",
                    )  # fmt: skip
        finally:
            reading.cancel()
            if waiting is not None:
                waiting.cancel()
            self._leading.later(lambda: membership.closed(self._link, first.node))

    async def _read(self, reports: AsyncIterator[pb.NodeReport], node: str) -> None:
        before = None
        async for message in reports:
            # Most say the same as the one before: thousands of nodes send one each second.
            if message == before and self._turn.membership.heard(self._link, node):
                continue
            before = message
            report = report_of(message)
            if report.node not in {"", node}:
                raise PenstockError(
                    f"a report of node {report.node} came from {node}", "a stream has one node",
                    "open another stream",
                )  # fmt: skip
            if not await self._leading.do(
                lambda report=report: self._turn.membership.report(self._link, report)  # type: ignore[misc]
            ):
                return
