"""HTTP server helpers: listening, health probes, and a clean stop on signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from errno import EADDRINUSE
from typing import TYPE_CHECKING

from aiohttp import web

from penstock.model import PenstockError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from typing import Any

AGAIN_S = 5.0  # between attempts to listen on a port that is in use
MOST_BYTES = 8 << 20  # of a request; a Pod and five thousand node names take less than 1 MiB


def probes(app: web.Application, is_ready: Callable[[], str]) -> None:
    """Adds /healthz and /readyz to `app`.

    `is_ready` returns the reason why the process is not ready, or an empty text if it is ready.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        why = is_ready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)


def only_probes(is_ready: Callable[[], str]) -> web.Application:
    """An application that serves only the probes, for an address that everyone can reach."""
    app = web.Application()
    probes(app, is_ready)
    return app


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, address: tuple[str, int], tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serves `app` while the context is open, and yields the port.

    Raises:
        PenstockError: the server cannot listen on the address.
    """
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *address, ssl_context=tls, backlog=512)
        try:
            await site.start()
        except OSError as error:
            raise PenstockError(
                f"cannot listen on {address[0]}:{address[1]}", str(error),
                "choose another address with --listen",
            ) from error  # fmt: skip
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def probed(
    is_ready: Callable[[], str], address: tuple[str, int], report: Callable[..., None]
) -> None:
    """Serves probes on a port that other users of the machine may occupy.

    While the port is in use, tries again every few seconds. Calls `report(event, **fields)` when it
    finds the port in use, and when the port is free again.

    Raises:
        PenstockError: the address does not exist.
    """
    taken = False
    while True:
        try:
            async with listening(only_probes(is_ready), address):
                if taken:
                    report("port is free", address=f"{address[0]}:{address[1]}")
                await asyncio.Event().wait()
        except PenstockError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != EADDRINUSE:
                raise
            if not taken:
                report("port is taken", address=f"{address[0]}:{address[1]}", reason=error.why)
            taken = True
        await asyncio.sleep(AGAIN_S)


async def until_stopped(*coroutines: Coroutine[Any, Any, Any] | Awaitable[Any]) -> str:
    """Runs the coroutines until SIGTERM or SIGINT, and returns the signal's name.

    An exception in one of the coroutines ends all of them and is raised.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()

    def stop(which: signal.Signals) -> None:
        if not stopped.done():
            stopped.set_result(which.name)

    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop, one)
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return await stopped
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
