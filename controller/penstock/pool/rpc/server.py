"""gRPC server of a pool's manager, on a unix socket and optionally over TCP with mutual TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import threading
from typing import TYPE_CHECKING

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock.model import PenstockError
from penstock.node.agent.person import People
from penstock.node.rpc.call_limits import MOST_CALLS, Calls, Streams
from penstock.node.rpc.peer_socket import PeerSocket
from penstock.pool.leadership import Leadership
from penstock.pool.rpc.callers import Callers
from penstock.pool.rpc.changes import Changes
from penstock.pool.rpc.leading import Leading
from penstock.pool.rpc.service import PoolService
from penstock.pool.rpc.web_map import WebMap
from penstock_api.v1 import pool_pb2, pool_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.node.rpc.tls import Tls
    from penstock.pool.settings import Settings

SERVICE = pool_pb2.DESCRIPTOR.services_by_name["Pool"].full_name
STOP_S = 2.0
MOST_PATH_BYTES = 107  # of a unix socket, without the NUL
EVERYBODY, OWNER = 0o666, 0o600
MOST_MESSAGE_BYTES = 4 << 20  # a report names all applications of a node
MOST_STREAMS = 1024  # a node passes on the calls of all its users over one connection
# A node or a holder whose machine has lost its power is noticed.
KEEPALIVE = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000),
             ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
             ("grpc.keepalive_permit_without_calls", 1)]  # fmt: skip


def _check_socket(path: Path, longest: Path) -> None:
    """Raises `PenstockError` if no socket can be made at `path`, or another manager serves it."""
    what = f"the socket {path} cannot be used"
    if len(os.fsencode(longest.absolute())) > MOST_PATH_BYTES:
        raise PenstockError(
            what, "its path is too long for a unix socket", "name a shorter path (--socket)"
        )
    if not path.exists():
        return
    if not path.is_socket():
        raise PenstockError(what, "another file is there", "name another path (--socket)")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return  # what a killed manager has left
        except OSError as error:
            raise PenstockError(
                what, error.strerror or str(error), "name another path (--socket)"
            ) from error
    raise PenstockError(
        what, "a manager or another program serves it already",
        "stop that one, or name another path (--socket)",
    )  # fmt: skip


class PoolServer:
    """The manager's server, which runs in its own thread from `start` to `stop`."""

    def __init__(
        self,
        database: str,
        path: Path,
        settings: Settings,
        tls: Tls | None,
        report: Callable[..., None],
    ) -> None:
        """`path`: of the unix socket. `database`: its URL."""
        self._tls = tls
        self._path = path
        self._inside = path.with_name(f"{path.name}.d")
        self._loop = asyncio.new_event_loop()
        self._sockets = PeerSocket(
            path, self._inside / "admin.sock", self._inside / "grpc.sock", People()
        )
        self._changes = Changes(self._loop)
        self.leading = Leading(database, settings, Leadership(database), self._changes, report)
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._running: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc", daemon=True)
        self.port: int | None = None

    def start(self, *, for_all: bool) -> None:
        """Starts serving. `for_all`: other users may call, too.

        Raises:
            PenstockError: the database, a socket or the TLS files are unusable.
        """
        _check_socket(self._path, self._inside / "admin.sock")
        self._thread.start()
        # It leads once nothing that an operator may have mistaken can fail any more.
        asyncio.run_coroutine_threadsafe(self._start(for_all=for_all), self._loop).result()
        self.leading.begin()
        asyncio.run_coroutine_threadsafe(self._lead(), self._loop).result()

    def web_map(self) -> WebMap:
        """The map for the web page, which answers while the server runs."""
        return WebMap(self.leading, self._loop)

    def stop(self) -> None:
        """Ends all calls; the pool goes on with its next manager."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self.leading.close()

    async def _start(self, *, for_all: bool) -> None:
        calls = Calls()
        callers = Callers(self._sockets, socket.gethostname())
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
                ("grpc.max_concurrent_streams", MOST_STREAMS),
                *KEEPALIVE,
            ],
            maximum_concurrent_rpcs=MOST_CALLS,
            interceptors=[Streams(calls, callers.principal)],
        )
        service = PoolService(self.leading, callers, self._changes, calls)
        pool_pb2_grpc.add_PoolServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        self._inside.mkdir(mode=0o700, exist_ok=True)
        inner = self._inside / "grpc.sock"
        inner.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{inner}")
        if self._tls is not None:
            self.port = self._tls.listen(server)
        await server.start()
        self._server = server
        await self._sockets.open(EVERYBODY if for_all else OWNER)

    async def _lead(self) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._running = asyncio.ensure_future(self.leading.run())

    async def _stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        if self._server is not None:
            await self._server.stop(STOP_S)
        await self._sockets.close()
        shutil.rmtree(self._inside, ignore_errors=True)
