"""Serves an agent: on its local socket always, over TCP with mutual TLS if it is asked to."""

from __future__ import annotations

import asyncio
import shutil
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock.agent import Caller, Orders
from penstock.api.door import Door
from penstock.api.service import AgentService
from penstock.model import PenstockError
from penstock_api.v1 import agent_pb2, agent_pb2_grpc

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.agent import Agent

SERVICE = agent_pb2.DESCRIPTOR.services_by_name["Agent"].full_name
STOP_S = 2.0  # calls under way may end
EVERYBODY, OWNER = 0o666, 0o600
MOST_MESSAGE_BYTES = 1 << 20  # of a request


@dataclass(frozen=True)
class Tls:
    """Where to listen, and with which certificates. Files in PEM."""

    address: str  # host:port
    certificate: Path
    key: Path
    authority: Path  # who signed the certificates of those that may call


class Server:
    """Serves from a thread of its own, from `start` to `stop`."""

    def __init__(self, agent: Agent, tls: Tls | None = None) -> None:
        self._agent = agent
        self._tls = tls
        self._inside = agent.state.directory / ".agent"
        self._door = Door(agent.state.agent_socket, self._inside / "grpc.sock")
        self._loop = asyncio.new_event_loop()
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc", daemon=True)
        self.port: int | None = None  # over TCP

    def start(self) -> None:
        """Begins to serve. Raises `PenstockError`."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        """Ends all calls; those under way have a moment."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _start(self) -> None:
        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", MOST_MESSAGE_BYTES)],
            maximum_concurrent_rpcs=512,
        )
        service = AgentService(self._agent, Orders(self._agent), self._identify)
        agent_pb2_grpc.add_AgentServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        self._inside.mkdir(mode=0o700, exist_ok=True)
        inner = self._inside / "grpc.sock"
        inner.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{inner}")
        if self._tls is not None:
            self.port = _listen(server, self._tls)
        await server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await self._door.open(EVERYBODY if self._agent.enforces else OWNER)
        self._server = server

    async def _stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(STOP_S)
        await self._door.close()
        shutil.rmtree(self._inside, ignore_errors=True)

    def _identify(self, context: Any) -> Caller | None:  # noqa: ANN401 - grpc's context
        """Over TLS by the certificate's name, else by the connection's address."""
        identity = context.auth_context().get("x509_common_name")
        if identity:
            return Caller.remote(identity[0].decode(errors="replace"))
        return self._door.caller(context.peer())


def _listen(server: grpc.aio.Server, tls: Tls) -> int:
    try:
        key, certificate, authority = (
            file.read_bytes() for file in (tls.key, tls.certificate, tls.authority)
        )
    except OSError as error:
        raise PenstockError(
            f"cannot read {error.filename}", error.strerror or str(error),
            "TLS needs a certificate, its key and the certificate of who signs callers'",
        ) from error  # fmt: skip
    credentials = grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=authority, require_client_auth=True
    )
    try:
        return int(server.add_secure_port(tls.address, credentials))
    except RuntimeError as error:
        raise PenstockError(
            f"cannot listen on {tls.address}", str(error),
            "check the address and the certificates, or choose another --listen",
        ) from error  # fmt: skip
