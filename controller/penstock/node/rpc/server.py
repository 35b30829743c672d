"""gRPC server of the agent: on local sockets, and optionally over TCP with mutual TLS."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock.node.agent import Orders, Principal
from penstock.node.rpc.call_limits import MOST_CALLS, Calls, Streams
from penstock.node.rpc.peer_socket import PeerSocket
from penstock.node.rpc.service import AgentService
from penstock.node.rpc.tls import Tls, name_of
from penstock_api.v1 import agent_pb2, agent_pb2_grpc

if TYPE_CHECKING:
    from penstock.node.agent import Agent

SERVICE = agent_pb2.DESCRIPTOR.services_by_name["Agent"].full_name
STOP_S = 2.0  # for calls in progress to end
EVERYBODY, OWNER = 0o666, 0o600
# An incomplete request is kept as long as its connection: a person's connections
# (`peer_socket.MOST_OF_A_USER`) hold at most 256 MiB of them.
MOST_MESSAGE_BYTES = 256 << 10
MOST_STREAMS = 32  # concurrent calls per connection; further ones wait in the client


class Server:
    """Serves in its own thread, from `start` to `stop`."""

    def __init__(self, agent: Agent, tls: Tls | None = None) -> None:
        self._agent = agent
        self._tls = tls
        self._inside = agent.state.admin_socket.parent
        self._peer_socket = PeerSocket(
            agent.state.agent_socket,
            agent.state.admin_socket,
            self._inside / "grpc.sock",
            agent.people,
        )
        self._loop = asyncio.new_event_loop()
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc", daemon=True)
        self.port: int | None = None  # over TCP

    def start(self) -> None:
        """Starts serving. Raises `PenstockError`."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        """Ends all calls; those in progress have `STOP_S` to finish."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _start(self) -> None:
        calls = Calls()
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MOST_MESSAGE_BYTES),
                ("grpc.max_concurrent_streams", MOST_STREAMS),
            ],
            maximum_concurrent_rpcs=MOST_CALLS,
            interceptors=[Streams(calls, self._identify)],
        )
        service = AgentService(self._agent, Orders(self._agent), self._identify, calls)
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
            self.port = self._tls.listen(server)
        await server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await self._peer_socket.open(EVERYBODY if self._agent.enforces else OWNER)
        self._server = server

    async def _stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(STOP_S)
        await self._peer_socket.close()
        shutil.rmtree(self._inside, ignore_errors=True)

    def _identify(self, context: Any) -> Principal | None:  # noqa: ANN401 - grpc's context
        """The principal: over TLS by certificate name, else by the connection's address."""
        peer = context.peer()
        if not peer.startswith(("ipv4:", "ipv6:")):
            return self._peer_socket.caller(peer)
        name = name_of(context.auth_context())
        return Principal.remote(name) if name is not None else None
