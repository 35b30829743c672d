"""Web server of the page: serves its files, and a stream of states for each viewer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from importlib import resources
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from penstock.model import PenstockError
from penstock.web.guard import HEADERS, add_headers, guard
from penstock.web.query import Query
from penstock.web.states import States

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.web.address import Address
    from penstock.web.states import Shared, Source

FILES = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript",
         "map.js": "text/javascript", "lists.js": "text/javascript",
         "history.js": "text/javascript", "icon.svg": "image/svg+xml"}  # fmt: skip
MOST_STREAMS = 64
MOST_CONNECTIONS = 256
FIRST_REQUEST_S = 10.0  # within which a connection must have made a request
ALIVE_EVERY_S = 5.0  # without changes; page.js counts on it
STALE_S = 8.0  # a state that was not found to be so for that long is not called alive
SLOWEST_WRITE_S = 20.0  # a viewer that takes nothing for that long is dropped
MOST_BUFFERED_BYTES = 64 << 10


class WebServer:
    """Serves the page in its own thread from `start` to `stop`."""

    def __init__(
        self,
        address: Address,
        source: Source,
        report: Callable[..., None],
        idle_s: float | None = None,
    ) -> None:
        """`source`: returns the state for a query. `idle_s`: how often it is called unseen."""
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._states = States(source, report, idle_s)
        self._logger = logging.Logger("penstock.web", logging.ERROR)
        self._logger.addHandler(_Faults(report))
        self._thread = threading.Thread(target=self._loop.run_forever, name="web", daemon=True)
        self._streams = 0
        self._requested: WeakSet[asyncio.BaseTransport] = WeakSet()
        self._stopping: asyncio.Event | None = None
        self._runner: web.AppRunner | None = None
        self._running: asyncio.Task[None] | None = None
        self._pages = {
            name: resources.files("penstock.web").joinpath("page", name or "page.html").read_bytes()
            for name in FILES
        }
        self.url = ""

    def start(self) -> None:
        """Starts serving. Raises `PenstockError` if the address cannot be used."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except OSError as error:
            self.stop()
            raise PenstockError(
                f"the web page cannot be served on {self._address.host}:{self._address.port}",
                error.strerror or str(error), "choose another address with --web-address",
            ) from error  # fmt: skip

    def stop(self) -> None:
        """Ends all streams and the server."""
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._states.close()

    async def _start(self) -> None:
        self._stopping = asyncio.Event()
        app = web.Application(middlewares=[guard(self._address.names())])
        app.on_response_prepare.append(add_headers)
        for name in FILES:
            app.router.add_get(f"/{name}", self._file)
        app.router.add_get("/events", self._events)
        # A viewer that has gone is noticed at once: `handler_cancellation`.
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1,
            handler_cancellation=True, logger=self._logger,
        )  # fmt: skip
        await runner.setup()
        self._runner = runner
        server = await self._loop.create_server(
            self._protocol, self._address.host, self._address.port, backlog=128
        )
        self._runner_server = server
        self.url = self._address.url(server.sockets[0].getsockname()[1])
        self._running = asyncio.ensure_future(self._states.run(Query()))

    async def _stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._runner_server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection: aiohttp's, or one that closes it if there are many."""
        if self._runner is None or self._runner.server is None:
            raise AssertionError
        if len(self._runner.server.connections) >= MOST_CONNECTIONS:
            return _Closed()
        handler = self._runner.server()

        def end_if_silent() -> None:
            transport = handler.transport
            if transport is not None and transport not in self._requested:
                transport.abort()

        self._loop.call_later(FIRST_REQUEST_S, end_if_silent)
        return handler

    async def _file(self, request: web.Request) -> web.Response:
        self._note(request)
        name = request.path.removeprefix("/")
        return web.Response(body=self._pages[name], content_type=FILES[name], charset="utf-8")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        try:
            query = Query.of(request.query)
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", **HEADERS})
        await answer.prepare(request)
        if self._streams >= MOST_STREAMS:
            await answer.write(_event("full", str(MOST_STREAMS)))
            return answer
        if request.transport is not None:
            request.transport.set_write_buffer_limits(MOST_BUFFERED_BYTES)
        self._streams += 1
        try:
            with self._states.watched(query) as shared:
                await self._stream(answer, shared)
        except (asyncio.TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams -= 1
        return answer

    async def _stream(self, answer: web.StreamResponse, shared: Shared) -> None:
        """Sends the newest state after each change; what a slow viewer missed is left out."""
        stopping = self._stopping
        if stopping is None:
            raise AssertionError
        number = 0
        while not stopping.is_set():
            newer = asyncio.ensure_future(shared.newer(number, ALIVE_EVERY_S))
            stopped = asyncio.ensure_future(stopping.wait())
            try:
                await asyncio.wait([newer, stopped], return_when=asyncio.FIRST_COMPLETED)
            finally:
                newer.cancel()
                stopped.cancel()
            if shared.number != number:
                number = shared.number
                kind = "problem" if shared.is_problem else "state"
                await asyncio.wait_for(answer.write(_event(kind, shared.text)), SLOWEST_WRITE_S)
            elif time.monotonic() - shared.made_s < STALE_S and not shared.is_problem:
                await asyncio.wait_for(answer.write(_event("alive", "")), SLOWEST_WRITE_S)

    def _note(self, request: web.Request) -> None:
        if request.transport is not None:
            self._requested.add(request.transport)


class _Faults(logging.Handler):
    """Reports aiohttp's errors, but not that somebody has sent what is no HTTP."""

    def __init__(self, report: Callable[..., None]) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            self._report("failed", reason=f"web page: {record.getMessage()}: {error!r}")


class _Closed(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()


def _event(kind: str, data: str) -> bytes:
    """An event of Server-Sent Events; its id is the time of this machine, in milliseconds."""
    return f"event: {kind}\nid: {time.time_ns() // 10**6}\ndata: {data}\n\n".encode()
