"""Service Pool on the agent's own socket: passes calls of local users on to the pool's manager.

The agent adds who calls, as the kernel tells it, so that users need no certificates. It remembers
the process that claims blocks as the holder of the application.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from penstock.model import PenstockError
from penstock.node.agent.pool_tenants import check_labels, is_pools
from penstock.node.agent.user_limits import PLACE_LABELS
from penstock.node.rpc.message_bounds import check_labels as check_label_sizes
from penstock.node.rpc.message_bounds import check_names, check_reason, shortened
from penstock.node.rpc.pool_claim import ANY_NODE
from penstock.node.rpc.status import TRAILER, abort, error_of
from penstock.node.tenants.environment import tenant_variables
from penstock_api.v1 import agent_pb2, pool_pb2_grpc
from penstock_api.v1 import pool_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.node.agent import Agent, Principal
    from penstock.node.rpc.call_limits import Calls, Kind
    from penstock.node.rpc.pool_endpoint import PoolEndpoint
    from penstock.node.rpc.pool_link import PoolLink

Answer = TypeVar("Answer", bound=Message)
Context = Any  # grpc.aio.ServicerContext's type parameters do not matter here
CALLER = "penstock-caller-bin"  # metadata: RelayedCaller, who calls
AWAITS_MANAGER_S = 3.0  # for the link to find a manager again
LARGE_AT_ONCE = 4  # states of the whole pool that are passed on at once; each may take 64 MiB
ANSWERS_WITHIN_S = 600.0  # the longest deadline that is passed on


class PoolRelay(pool_pb2_grpc.PoolServicer):
    """The service of one agent; `link` is None if the node is in no pool."""

    def __init__(
        self,
        agent: Agent,
        link: PoolLink | None,
        endpoint: PoolEndpoint | None,
        identify: Callable[[Context], Principal | None],
        calls: Calls,
    ) -> None:
        self._agent = agent
        self._link = link
        self._endpoint = endpoint
        self._identify = identify
        self._calls = calls
        self._channel: tuple[str, grpc.aio.Channel] | None = None
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def close(self) -> None:
        """Closes the connection to the manager."""
        if self._channel is not None:
            await self._channel[1].close()
            self._channel = None

    async def Acquire(  # noqa: N802
        self, request: pb.AcquireRequest, context: Context
    ) -> AsyncIterator[pb.AcquireUpdate]:
        """See pool.proto."""
        caller = await self._local_caller(context)
        try:
            _check_claim(request, caller)
        except PenstockError as error:
            await abort(context, error)
        claim = pb.AcquireRequest()
        claim.CopyFrom(request)
        del claim.command[:]
        claim.command.extend(shortened(request.command))
        if claim.node == ANY_NODE:
            claim.node = ""
        elif not claim.node and claim.span != pb.SPAN_POOL:
            claim.node = self._agent.node.name
        is_held = request.lifetime == agent_pb2.LIFETIME_PROCESSES
        name, has_run, held = "", False, None
        try:
            async for update in self._stream(context, caller, "Acquire", claim):
                if update.application.name != name and is_held:
                    name = update.application.name
                    self._remember(name, caller)
                    held = self._agent.pool_holders.of(name)
                if update.application.phase == "running":
                    has_run = True
                    await self._add_environment(update, caller)
                yield update
        finally:
            if name and not has_run:  # the claim was refused, or withdrawn by its caller
                self._agent.pool_holders.forget(name, held)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:  # noqa: N802
        """See pool.proto."""
        check = (lambda: check_names([request.name]), lambda: check_reason(request.reason))
        held = self._agent.pool_holders.of(request.name)
        answer = await self._pass(context, "Release", request, pb.ReleaseResponse, *check)
        self._agent.pool_holders.forget(request.name, held)
        return answer

    async def ResizeApplication(  # noqa: N802
        self, request: pb.ResizeApplicationRequest, context: Context
    ) -> pb.ResizeApplicationResponse:
        """See pool.proto."""
        kind = pb.ResizeApplicationResponse
        return await self._pass(context, "ResizeApplication", request, kind)

    async def KeepAlive(  # noqa: N802
        self, request: pb.KeepAliveRequest, context: Context
    ) -> pb.KeepAliveResponse:
        """See pool.proto."""
        check = (lambda: check_names(request.names),)
        return await self._pass(context, "KeepAlive", request, pb.KeepAliveResponse, *check)

    async def GetPool(self, request: pb.GetPoolRequest, context: Context) -> pb.PoolState:  # noqa: N802
        """See pool.proto."""
        async with self._large:
            return await self._pass(context, "GetPool", request, pb.PoolState, as_kind="query")

    async def Why(self, request: pb.WhyRequest, context: Context) -> pb.WhyResponse:  # noqa: N802
        """See pool.proto."""
        return await self._pass(context, "Why", request, pb.WhyResponse, as_kind="query")

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:  # noqa: N802
        """See pool.proto."""
        return await self._pass(context, "Drain", request, pb.DrainResponse)

    async def Compact(  # noqa: N802
        self, request: pb.CompactRequest, context: Context
    ) -> AsyncIterator[pb.CompactUpdate]:
        """See pool.proto."""
        caller = await self._local_caller(context)
        async for update in self._stream(context, caller, "Compact", request):
            yield update

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.PoolEvent]:
        """See pool.proto."""
        caller = await self._local_caller(context)
        async for event in self._stream(context, caller, "Watch", request):
            yield event

    async def Join(self, request: object, context: Context) -> None:  # noqa: N802
        """Refused: a node joins at the manager itself."""
        del request
        await abort(
            context,
            PenstockError(
                "an agent takes no nodes into its pool", "only the pool's manager does",
                "name the manager's address with penstock agent --pool", reason="not-allowed",
            ),
        )  # fmt: skip

    async def _pass(
        self,
        context: Context,
        method: str,
        request: Message,
        kind: type[Answer],
        *checks: Callable[[], None],
        as_kind: Kind = "order",
    ) -> Answer:
        """Passes a call on and answers as the manager does."""
        caller = await self._local_caller(context)
        try:
            left_s = _deadline_s(context)
            for check in checks:
                check()
            with self._calls.one(caller, as_kind):
                stub = await self.stub(min(left_s, AWAITS_MANAGER_S))
                answer = await getattr(stub, method)(
                    request, timeout=left_s, metadata=caller_metadata(caller)
                )
        except PenstockError as error:
            await abort(context, error)
        except grpc.RpcError as error:
            await self._abort_as(context, error)
        if not isinstance(answer, kind):
            raise TypeError(f"{answer!r} is not a {kind.__name__}")
        return answer

    async def _stream(
        self, context: Context, caller: Principal, method: str, request: Message
    ) -> AsyncIterator[Any]:
        """Passes a stream on; when the caller goes away, the manager learns it at once."""
        call = None
        try:
            stub = await self.stub(AWAITS_MANAGER_S)
            left_s = context.time_remaining()
            call = getattr(stub, method)(request, metadata=caller_metadata(caller), timeout=left_s)
            async for update in call:
                yield update
        except PenstockError as error:
            await abort(context, error)
        except grpc.RpcError as error:
            await self._abort_as(context, error)
        finally:
            if call is not None:
                call.cancel()

    async def _abort_as(self, context: Context, error: grpc.RpcError) -> None:
        """Ends the call with the manager's status, or with ours if it did not answer."""
        trailers: Any = error.trailing_metadata() or ()
        kept = tuple((key, value) for key, value in trailers if key == TRAILER)
        if kept:
            await context.abort(error.code(), error.details(), kept)
        if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
            await abort(context, _away(str(error.details())))
        found = error_of(error, "the pool's manager")
        await context.abort(error.code(), str(found), ())

    async def stub(self, wait_s: float) -> Any:  # noqa: ANN401 - generated
        """The manager that the node has joined. Raises `PenstockError` if there is none."""
        if self._link is None or self._endpoint is None:
            raise PenstockError(
                f"the node {self._agent.node.name} is in no compute pool",
                "its agent was started without --pool",
                "start it with penstock agent --pool HOST:PORT, or call the pool's manager itself",
                reason="not-now",
            )
        until_s = time.monotonic() + wait_s
        while (address := self._link.joined) is None:
            if time.monotonic() > until_s:
                raise _away("the agent has no connection to a manager")
            await asyncio.sleep(0.02)
        if self._channel is None or self._channel[0] != address:
            await self.close()
            self._channel = (address, self._endpoint.channel(address))
        return pool_pb2_grpc.PoolStub(self._channel[1])  # type: ignore[no-untyped-call]

    async def _local_caller(self, context: Context) -> Principal:
        """The caller. Ends the call if it did not come over a local socket."""
        caller = self._identify(context)
        if caller is None or caller.uid is None:
            await abort(
                context,
                PenstockError(
                    "an agent passes on calls of its own node's users only",
                    "this call came from elsewhere", "call the pool's manager itself",
                    reason="not-allowed",
                ),
            )  # fmt: skip
            raise AssertionError  # never reached: abort raises
        return caller

    def _remember(self, application: str, caller: Principal) -> None:
        member = self._agent.pool_member
        if member is not None and caller.process is not None and application:
            needed = [one.application for one in member.state().parts]
            self._agent.pool_holders.add(application, str(caller.person), caller.process, needed)

    async def _add_environment(self, update: pb.AcquireUpdate, caller: Principal) -> None:
        """Adds the variables of a program of the tenant if it is here and the caller's."""
        agent = self._agent
        managed = agent.registry.find(update.application.tenant or update.application.name)
        if managed is None or not is_pools(managed.grant):
            return
        try:
            caller.check_may_change(managed.grant)
            variables = await asyncio.to_thread(
                tenant_variables,
                agent.node.state,
                managed.tenant,
                managed.grant,
                agent.node.source,
            )
        except (PenstockError, OSError):
            return
        update.environment.update(variables)


def _check_claim(request: pb.AcquireRequest, caller: Principal) -> None:
    """Raises `PenstockError` if a field is too long, or sets what only the node sets."""
    check_names([request.name, request.node, request.kind])
    check_reason(request.request_id)
    check_label_sizes(request.labels)
    check_labels(request.labels, caller)
    forged = sorted(PLACE_LABELS & request.labels.keys())
    if forged and not caller.is_admin:
        raise PenstockError(
            f"{caller.name} may not set the labels {', '.join(forged)}",
            "only the node sets these labels, which metrics carry",
            "choose other names for your own labels", reason="not-allowed",
        )  # fmt: skip


def _deadline_s(context: Context) -> float:
    """The time that is left for the call. Raises `PenstockError` if it has no deadline."""
    left_s: float | None = context.time_remaining()
    if left_s is None:
        raise PenstockError("the call has no deadline", "every call needs one", "set a timeout")
    return min(left_s, ANSWERS_WITHIN_S)


def caller_metadata(caller: Principal) -> tuple[tuple[str, bytes]]:
    """Who calls. What the caller itself has sent as metadata is never passed on."""
    relayed = pb.RelayedCaller(user=caller.name, uid=caller.uid or 0)
    return ((CALLER, relayed.SerializeToString()),)


def _away(why: str) -> PenstockError:
    return PenstockError(
        "the pool's manager does not answer", why,
        "try again; the agent's log says what it tries (pool not joined, pool lost)",
        reason="unavailable",
    )  # fmt: skip
