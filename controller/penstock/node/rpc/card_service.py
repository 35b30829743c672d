"""Service Cards of an agent: starts the cards of programs on this node and, for those, elsewhere.

A local user asks the own node's agent. It asks the pool's manager whether the application is the
user's and where the other node's agent is, and passes the call on to that one, with the certificate
of the node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from penstock.model import PenstockError
from penstock.node.agent.card_workers import STARTS_WITHIN_S, Wanted
from penstock.node.agent.principal import NODE
from penstock.node.rpc.message_bounds import check_names
from penstock.node.rpc.pool_relay import caller_metadata
from penstock.node.rpc.status import TRAILER, abort, error_of
from penstock_api.v1 import cards_pb2 as pb
from penstock_api.v1 import cards_pb2_grpc, pool_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.node.agent import Agent, Principal
    from penstock.node.rpc.call_limits import Calls
    from penstock.node.rpc.pool_endpoint import PoolEndpoint
    from penstock.node.rpc.pool_relay import PoolRelay

Context = Any
ASKS_WITHIN_S = 10.0
_MOST_PEM_BYTES = 16 << 10


class CardService(cards_pb2_grpc.CardsServicer):
    """The service of one agent."""

    def __init__(
        self,
        agent: Agent,
        relay: PoolRelay,
        endpoint: PoolEndpoint | None,
        identify: Callable[[Context], Principal | None],
        calls: Calls,
    ) -> None:
        self._agent = agent
        self._relay = relay
        self._endpoint = endpoint
        self._identify = identify
        self._calls = calls

    async def Start(self, request: pb.StartCardRequest, context: Context) -> pb.StartCardResponse:  # noqa: N802
        """See cards.proto."""
        try:
            caller = _known(self._identify(context))
            _check(request)
            with self._calls.one(caller, "order"):
                if caller.uid is None:
                    return await self._start_for_node(request, caller)
                return await self._start_for_user(request, caller)
        except PenstockError as error:
            await abort(context, error)
            raise

    async def _start_for_node(
        self, request: pb.StartCardRequest, caller: Principal
    ) -> pb.StartCardResponse:
        """Starts a card here for a program on the node that calls; that node knows its users."""
        if not caller.name.startswith(NODE):
            raise PenstockError(
                f"{caller.name} may not start cards", "only the agents of other nodes do",
                "call this node's agent on its socket", reason="not-allowed",
            )  # fmt: skip
        return await self._start_here(request, is_local=False)

    async def _start_for_user(
        self, request: pb.StartCardRequest, caller: Principal
    ) -> pb.StartCardResponse:
        """Starts a card of a local user's application, here or on another node."""
        address = await self._address(request, caller)
        if request.node == self._agent.node.name:
            return await self._start_here(request, is_local=True)
        if self._endpoint is None or not address:
            raise PenstockError(
                f"node {request.node} cannot start a card for this node",
                "its agent does not listen for other nodes",
                "start it with penstock agent --listen HOST:PORT and its certificates",
                reason="unavailable",
            )  # fmt: skip
        try:
            async with self._endpoint.channel(address, NODE + request.node) as channel:
                stub = cards_pb2_grpc.CardsStub(channel)  # type: ignore[no-untyped-call]
                answer = await stub.Start(request, timeout=STARTS_WITHIN_S + ASKS_WITHIN_S)
        except grpc.RpcError as error:
            raise _passed_on(error, request.node, address) from None
        if not isinstance(answer, pb.StartCardResponse):
            raise TypeError(f"{answer!r} is no answer")
        return answer

    async def _address(self, request: pb.StartCardRequest, caller: Principal) -> str:
        """The address of the agent of the card's node; the manager answers the owner only.

        Raises:
            PenstockError: the application is another's, has ended, or has no such device.
        """
        stub = await self._relay.stub(ASKS_WITHIN_S)
        try:
            found = await stub.Why(
                pool_pb2.WhyRequest(name=request.application),
                timeout=ASKS_WITHIN_S, metadata=caller_metadata(caller),
            )  # fmt: skip
        except grpc.RpcError as error:
            refused = error_of(error, "the pool's manager")
            raise refused from None
        if found.application.claimed != request.claimed:
            raise PenstockError(
                f"application {request.application} has ended", "another one has its name now",
                "start the program again", reason="no-such-tenant",
            )  # fmt: skip
        for part in found.application.parts:
            if part.node == request.node and part.device_uuid == request.device_uuid:
                return str(part.address)
        raise PenstockError(
            f"application {request.application} has no device {request.device_uuid} of node "
            f"{request.node}", "the pool has moved it", "ask the pool where it is",
            reason="not-now",
        )  # fmt: skip

    async def _start_here(
        self, request: pb.StartCardRequest, *, is_local: bool
    ) -> pb.StartCardResponse:
        secrets = {
            "token": request.token.hex(),
            "certificate": request.certificate.decode("ascii"),
            "key": request.key.decode("ascii"),
            "authority": request.authority.decode("ascii"),
            "peer": request.peer,
        }
        wanted = Wanted(
            request.application, request.claimed.ToNanoseconds(), request.device_uuid, is_local,
            secrets,
        )  # fmt: skip
        started = await asyncio.to_thread(self._agent.card_workers.start, wanted)
        return pb.StartCardResponse(
            address=started.address, host=started.host, pid=started.pid,
            is_stand_in=started.is_stand_in,
        )  # fmt: skip


def _known(caller: Principal | None) -> Principal:
    if caller is None:
        raise PenstockError(
            "the caller is not known", "it has no certificate",
            "call this node's agent on its socket", reason="not-allowed",
        )  # fmt: skip
    return caller


def _check(request: pb.StartCardRequest) -> None:
    """Raises `PenstockError` if a field is too long or cannot be meant."""
    check_names([request.application, request.node, request.device_uuid, request.peer])
    files = (request.certificate, request.key, request.authority)
    if any(len(one) > _MOST_PEM_BYTES or not one.isascii() for one in files):
        raise PenstockError(
            "a card's certificate cannot be used",
            f"it is no PEM of at most {_MOST_PEM_BYTES} bytes", "send another one",
        )  # fmt: skip


def _passed_on(error: grpc.RpcError, node: str, address: str) -> PenstockError:
    """The error of another node's agent, or that it does not answer."""
    trailers: Any = error.trailing_metadata() or ()
    if any(key == TRAILER for key, _ in trailers):
        return error_of(error, f"node {node}")
    return PenstockError(
        f"the agent of node {node} does not answer at {address}", str(error.details()),
        f"see whether this node reaches it, and whether its certificate's name is {NODE}{node}",
        reason="unavailable",
    )  # fmt: skip
