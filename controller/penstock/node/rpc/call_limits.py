"""Limits on concurrent calls for each principal, so that no caller starves the others."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import grpc
import grpc.aio

from penstock.model import PenstockError
from penstock.node.rpc.status import abort

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from penstock.node.agent import Principal

Context = Any  # the type parameters of these grpc types do not matter here
Message = Any
Details = Any
Handler = Any
Kind = Literal["order", "query", "stream", "revoke"]
MOST: dict[Kind, int] = {"order": 64, "query": 16, "stream": 16, "revoke": 8}
MOST_OF_ADMIN: dict[Kind, int] = {"order": 1024, "query": 256, "stream": 256, "revoke": 256}
# For all callers, including calls with an incomplete request; more than all connections allow.
MOST_CALLS = 1 << 16


class Calls:
    """Counts the calls in progress. For use in the server's event loop only."""

    def __init__(self) -> None:
        self._under_way: Counter[tuple[int | str, Kind]] = Counter()

    @contextlib.contextmanager
    def one(self, caller: Principal, kind: Kind) -> Iterator[None]:
        """Counts a call while it lasts. Raises `PenstockError` if the caller has too many."""
        key = (caller.person, kind)
        most = (MOST_OF_ADMIN if caller.is_admin else MOST)[kind]
        if self._under_way[key] >= most:
            raise PenstockError(
                f"{caller.name} has {most} calls of this kind in progress",
                "the agent limits concurrent calls per caller",
                "wait for some of them to end, or cancel them, and try again", reason="not-now",
            )  # fmt: skip
        self._under_way[key] += 1
        try:
            yield
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]


class Streams(grpc.aio.ServerInterceptor):
    """Counts the streaming calls of all services, because they may have no deadline."""

    def __init__(self, calls: Calls, identify: Callable[[Any], Principal | None]) -> None:
        self._calls = calls
        self._identify = identify

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Details
    ) -> Handler:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return handler
        if handler.request_streaming:
            made, behaviour = grpc.stream_stream_rpc_method_handler, handler.stream_stream
        else:
            made, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        return made(
            self._counted(behaviour), handler.request_deserializer, handler.response_serializer
        )

    def _counted(self, behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        generates = inspect.isasyncgenfunction(behaviour)

        # This is no generator, because grpc leaves a generator that is cancelled during a write to
        # the garbage collector.
        async def call(request: Message, context: Context) -> None:
            caller = self._identify(context)
            if caller is None:
                await context.abort(
                    grpc.StatusCode.UNAUTHENTICATED, "the caller cannot be identified"
                )
                return
            counted = contextlib.ExitStack()
            try:
                counted.enter_context(self._calls.one(caller, "stream"))
            except PenstockError as error:
                await abort(context, error)
            with counted:
                answers = behaviour(request, context)
                if generates:
                    await _write(answers, context)
                else:
                    await answers

        return call


async def _write(answers: AsyncGenerator[Message, None], context: Context) -> None:
    async with contextlib.aclosing(answers):
        async for answer in answers:
            await context.write(answer)
