"""gRPC server of the agent, on local sockets and optionally over TCP with mutual TLS."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING, Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock.node.agent import Principal
from penstock.node.rpc.call_limits import MOST_CALLS, Calls, Streams
from penstock.node.rpc.card_service import CardService
from penstock.node.rpc.peer_socket import PeerSocket
from penstock.node.rpc.pool_relay import PoolRelay
from penstock.node.rpc.service import AgentService
from penstock.node.rpc.tls import Tls, name_of
from penstock_api.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    cards_pb2,
    cards_pb2_grpc,
    pool_pb2,
    pool_pb2_grpc,
)

if TYPE_CHECKING:
    from penstock.node.agent import Agent
    from penstock.node.rpc.pool_endpoint import PoolEndpoint
    from penstock.node.rpc.pool_link import PoolLink

POOL_SERVICE = pool_pb2.DESCRIPTOR.services_by_name["Pool"].full_name
CARD_SERVICE = cards_pb2.DESCRIPTOR.services_by_name["Cards"].full_name
SERVICE = agent_pb2.DESCRIPTOR.services_by_name["Agent"].full_name
STOP_S = 2.0  # how long calls in progress may take to end
EVERYBODY, OWNER = 0o666, 0o600
# An incomplete request is kept while its connection lasts, so all connections of a person
# (`peer_socket.MOST_OF_A_USER`) can hold at most 256 MiB of incomplete requests.
MOST_MESSAGE_BYTES = 256 << 10
MOST_STREAMS = 32  # concurrent calls per connection; more calls wait in the client


class Server:
    """The agent's server, which runs in its own thread from `start` to `stop`."""

    def __init__(
        self,
        agent: Agent,
        tls: Tls | None = None,
        link: PoolLink | None = None,
        endpoint: PoolEndpoint | None = None,
    ) -> None:
        """`link`, `endpoint`: to the manager of the node's compute pool, if it is in one."""
        self._agent = agent
        self._tls = tls
        self._pool = link, endpoint
        self._relay: PoolRelay | None = None
        self._inside = agent.node.state.admin_socket.parent
        self._peer_socket = PeerSocket(
            agent.node.state.agent_socket,
            agent.node.state.admin_socket,
            self._inside / "grpc.sock",
            agent.people,
        )
        self._loop = asyncio.new_event_loop()
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._thread = threading.Thread(target=self._loop.run_forever, name="grpc", daemon=True)
        self.port: int | None = None  # the TCP port, if any

    def start(self) -> None:
        """Starts serving. Raises `PenstockError` if a socket or the TLS files are unusable."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        """Ends all calls, after leaving those in progress `STOP_S` to finish."""
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
        service = AgentService(self._agent, self._identify, calls)
        agent_pb2_grpc.add_AgentServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        self._relay = PoolRelay(self._agent, *self._pool, self._identify, calls)
        pool_pb2_grpc.add_PoolServicer_to_server(self._relay, server)  # type: ignore[no-untyped-call]
        cards = CardService(self._agent, self._relay, self._pool[1], self._identify, calls)
        cards_pb2_grpc.add_CardsServicer_to_server(cards, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (SERVICE, POOL_SERVICE, CARD_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME),
            server,
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
        await self._peer_socket.open(EVERYBODY if self._agent.node.enforces else OWNER)
        self._server = server

    async def _stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(STOP_S)
        if self._relay is not None:
            await self._relay.close()
        await self._peer_socket.close()
        shutil.rmtree(self._inside, ignore_errors=True)

    def _identify(self, context: Any) -> Principal | None:  # noqa: ANN401 - grpc's context
        """The principal, by certificate name over TLS, otherwise by the connection's address."""
        peer = context.peer()
        if not peer.startswith(("ipv4:", "ipv6:")):
            return self._peer_socket.caller(peer)
        name = name_of(context.auth_context())
        return Principal.remote(name) if name is not None else None
