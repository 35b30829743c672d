"""gRPC service Pool: turns each call into an operation of an identified caller."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from penstock.model import PenstockError
from penstock.node.rpc.message_bounds import check_reason
from penstock.node.rpc.status import abort
from penstock.pool import moves
from penstock.pool.claims import check_may_change, no_such
from penstock.pool.rpc import convert, view
from penstock.pool.rpc.acquire import AcquireStream
from penstock.pool.rpc.changes import woken
from penstock.pool.rpc.join import NodeStream
from penstock.scheduling.blocks.advice import advice
from penstock_api.v1 import pool_pb2 as pb
from penstock_api.v1 import pool_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.node.rpc.call_limits import Calls, Kind
    from penstock.pool.caller import Caller
    from penstock.pool.manager import Manager
    from penstock.pool.rpc.callers import Callers
    from penstock.pool.rpc.changes import Changes
    from penstock.pool.rpc.leading import Leading, Turn
    from penstock.scheduling.blocks.claim import Claim

Answer = TypeVar("Answer")
Context = Any  # grpc.aio.ServicerContext's type parameters do not matter here
LOOKS_EVERY_S = 1.0  # beside being woken, so that nothing waits for a signal that was lost
MOST_RELEASE_S = 30.0
EVENTS_AT_ONCE = 500


class PoolService(pool_pb2_grpc.PoolServicer):
    """The service of one manager."""

    def __init__(self, leading: Leading, callers: Callers, changes: Changes, calls: Calls) -> None:
        self._leading = leading
        self._callers = callers
        self._changes = changes
        self._calls = calls

    async def Join(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.NodeReport], context: Context
    ) -> None:
        """See pool.proto."""
        try:
            stream = NodeStream(self._leading, self._leading.turn(), context)
            await stream.serve(request_iterator, self._callers.node)
        except (asyncio.TimeoutError, StopAsyncIteration):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the node sent no first report")
        except PenstockError as error:
            await abort(context, error)

    async def Acquire(self, request: pb.AcquireRequest, context: Context) -> None:  # noqa: N802
        """See pool.proto."""
        try:
            turn, caller = self._leading.turn(), self._caller(context)
            asked = convert.asked_of(request)
            stream = AcquireStream(self._leading, turn, self._changes, caller)
            await stream.serve(asked, context)
        except PenstockError as error:
            await abort(context, error)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:  # noqa: N802
        """See pool.proto."""
        async with _Call(self, context, "revoke") as (turn, caller):
            name, grace_ns = request.name, convert.grace_of(request)
            check_reason(request.reason)
            convert.check_application_names([name])
            left_s = min(context.time_remaining() - 0.5, MOST_RELEASE_S + (grace_ns or 0) / 1e9)
            deadline_s = time.monotonic() + left_s
            claimed_ns = await self._leading.do(
                lambda: turn.claims.release(
                    name, caller, request.reason, grace_ns, request.claimed.ToNanoseconds()
                )
            )
            with self._changes.of(name) as changed:
                while (
                    (one := turn.manager.registry.holdings.get(name)) is not None
                    and one.claimed_ns == claimed_ns  # not the next one of this name
                    and time.monotonic() < deadline_s
                ):
                    await woken(changed, min(LOOKS_EVERY_S, deadline_s - time.monotonic()))
        return pb.ReleaseResponse()

    async def ResizeApplication(  # noqa: N802
        self, request: pb.ResizeApplicationRequest, context: Context
    ) -> pb.ResizeApplicationResponse:
        """See pool.proto."""
        async with _Call(self, context, "order") as (turn, caller):
            name, manager = request.name, turn.manager
            if not 0 < request.blocks <= convert.MOST_BLOCKS:
                raise PenstockError("the number of blocks is invalid", "it must be above 0",
                                    "release the application to have none")  # fmt: skip
            begun = await self._leading.do(lambda: turn.claims.resize(name, request.blocks, caller))
            with self._changes.of(name) as changed:
                while begun and (why := await self._leading.do(
                    lambda: _resized(manager, name)
                )) is not None:  # fmt: skip
                    if why:
                        raise PenstockError(
                            f"application {name} could not be resized", why,
                            "it goes on as it was", reason="not-now",
                        )  # fmt: skip
                    await woken(changed, LOOKS_EVERY_S)
            return await self._leading.do(
                lambda: pb.ResizeApplicationResponse(application=_shown(turn, name))
            )

    async def KeepAlive(  # noqa: N802
        self, request: pb.KeepAliveRequest, context: Context
    ) -> pb.KeepAliveResponse:
        """See pool.proto."""
        async with _Call(self, context, "order") as (turn, caller):
            names = convert.check_application_names(list(request.names))
            unknown = await self._leading.do(lambda: turn.claims.keep_alive(names, caller))
            return pb.KeepAliveResponse(unknown=unknown)

    async def Compact(  # noqa: N802
        self, request: pb.CompactRequest, context: Context
    ) -> AsyncIterator[pb.CompactUpdate]:
        """See pool.proto."""
        async with _Call(self, context, "order") as (turn, caller):
            if not request.dry_run and not caller.is_admin:
                raise _not_admin(caller, "to move applications")
            manager = turn.manager
            plan = await self._leading.do(lambda: moves.plan(manager, every=request.full))
            yield pb.CompactUpdate(
                plan=[_move(move) for move in plan.moves],
                left_out=[_move(move, why) for move, why in plan.hindered],
                is_partial=plan.is_partial,
            )
            for move in () if request.dry_run else plan.moves:
                began_s = time.monotonic()
                why: str | None = await self._leading.do(
                    lambda move=move: moves.begin(manager, move)  # type: ignore[misc]
                )
                with self._changes.of(move.name) as changed:
                    while not why:
                        why = await self._leading.do(
                            lambda move=move: moves.result(manager, move)  # type: ignore[misc]
                        )
                        if why is not None:
                            break
                        await woken(changed, LOOKS_EVERY_S)
                done = _move(move)
                done.failure = why or ""
                convert.set_duration(done.took, int((time.monotonic() - began_s) * 1e9))
                yield pb.CompactUpdate(done=done)

    async def GetPool(self, request: pb.GetPoolRequest, context: Context) -> pb.PoolState:  # noqa: N802
        """See pool.proto."""
        async with _Call(self, context, "query") as (turn, _):
            return await self._leading.do(
                lambda: view.pool_state(turn.manager, summary=request.summary)
            )

    async def Why(self, request: pb.WhyRequest, context: Context) -> pb.WhyResponse:  # noqa: N802
        """See pool.proto."""
        async with _Call(self, context, "query") as (turn, caller):
            if not request.name:
                asked = convert.asked_of(request.claim)
                return await self._leading.do(lambda: _why_claim(turn.manager, asked.claim))
            return await self._leading.do(lambda: _why(turn, request.name, caller))

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.PoolEvent]:
        """See pool.proto."""
        async with _Call(self, context, None) as (turn, _):
            names = convert.check_application_names(list(request.names))
            newest = 0
            with self._changes.of("") as changed:
                while True:
                    is_over = names and not any(
                        name in turn.manager.registry.holdings for name in names
                    )
                    events = await self._leading.read(
                        lambda after=newest: turn.manager.store.events(  # type: ignore[misc]
                            after, EVENTS_AT_ONCE, names
                        )
                    )
                    if names and not events and not newest and is_over:
                        raise no_such(names[0])
                    for event in events:
                        newest = event.number
                        yield convert.event_to(event)
                    if len(events) == EVENTS_AT_ONCE:
                        continue
                    if not request.follow or is_over:
                        return
                    self._leading.turn()  # ends with an error if another one leads
                    await woken(changed, LOOKS_EVERY_S)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:  # noqa: N802
        """See pool.proto."""
        async with _Call(self, context, "order") as (turn, caller):
            if not caller.is_admin:
                raise _not_admin(caller, "to drain a node")
            if request.stop and request.now:
                raise PenstockError(
                    "stop and now contradict each other",
                    "one ends the draining, the other hastens it", "give only one of them",
                )  # fmt: skip
            return await self._leading.do(lambda: _drained(turn.manager, request, caller))

    def _caller(self, context: Context) -> Caller:
        return self._callers.caller(context, self._leading.turn().manager.nodes)


class _Call:
    """One call that is not Acquire or Join: who calls, its limits, and its error."""

    def __init__(self, service: PoolService, context: Context, kind: Kind | None) -> None:
        """`kind`: None for a stream, which is counted and needs no deadline."""
        self._service = service
        self._context = context
        self._kind = kind
        self._counted: Any = None

    async def __aenter__(self) -> tuple[Turn, Caller]:
        service, context = self._service, self._context
        try:
            turn, caller = service._leading.turn(), service._caller(context)  # noqa: SLF001 - its own
            _check_deadline(context, self._kind)
            principal = service._callers.principal(context)  # noqa: SLF001
            if self._kind is not None and principal is not None:
                counted = service._calls.one(principal, self._kind)  # noqa: SLF001
                counted.__enter__()
                self._counted = counted
        except PenstockError as error:
            await abort(context, error)
            raise
        return turn, caller

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._counted is not None:
            self._counted.__exit__(None, None, None)
        if isinstance(error, PenstockError):
            await abort(self._context, error)


def _check_deadline(context: Context, kind: Kind | None) -> None:
    """Raises `PenstockError` if a call that is no stream has no deadline."""
    if kind is not None and context.time_remaining() is None:
        raise PenstockError("the call has no deadline", "every call needs one", "set a timeout")


def _shown(turn: Turn, name: str) -> pb.Application:
    with turn.manager.reading() as registry:
        return view.application(turn.manager, turn.claims.holding(registry, name))


def _why(turn: Turn, name: str, caller: Caller) -> pb.WhyResponse:
    with turn.manager.reading() as registry:
        one = turn.claims.holding(registry, name)
        check_may_change(one, caller)
        shown = view.application(turn.manager, one)
        core = registry.pool.applications.get(name)
        reason = shown.reason or f"it is {shown.phase}"
        helps: tuple[str, ...] = ()
        if core is not None and core.phase == "waiting":
            now_ns = turn.manager.clock.now_ns()
            found = advice(registry.pool, core.claim, now_ns, waits=True)
            reason, helps = found.reason, found.helps
        return pb.WhyResponse(application=shown, reason=reason, helps=helps, place=shown.place)


def _why_claim(manager: Manager, claim: Claim) -> pb.WhyResponse:
    with manager.reading() as registry:
        found = advice(registry.pool, claim, manager.clock.now_ns())
        return pb.WhyResponse(reason=found.reason, helps=found.helps)


def _drained(manager: Manager, request: pb.DrainRequest, caller: Caller) -> pb.DrainResponse:
    why = f"{caller.owner} drained node {request.node}" if request.now else ""
    manager.drain(request.node, drains=not request.stop, ends_because=why)
    with manager.reading():
        return pb.DrainResponse(node=view.node_message(manager, request.node))


def _resized(manager: Manager, name: str) -> str | None:
    """Why a resize has failed, "" while it is under way; None: it is done."""
    with manager.reading() as registry:
        one = registry.holdings.get(name)
        if name in manager.progress.resizes:
            return manager.progress.resizes.pop(name) or None
        if one is None or one.state != "running":
            return "it was suspended, moved or ended meanwhile"
        return "" if one.ordered_blocks else None


def _move(move: Any, failure: str = "") -> pb.PoolMove:  # noqa: ANN401 - blocks.compaction.Move
    message = pb.PoolMove(
        application=move.name,
        source=[pb.BlockRun(first=run.first, last=run.last) for run in move.source],
        target=[pb.BlockRun(first=run.first, last=run.last) for run in move.target],
        moved_bytes=move.moved_bytes,
        failure=failure,
    )
    convert.set_duration(message.cost, int(move.cost_s * 1e9))
    return message


def _not_admin(caller: Caller, what: str) -> PenstockError:
    return PenstockError(
        f"{caller.owner} is not allowed {what}", "only an administrator is allowed to do that",
        "ask an administrator", reason="not-allowed",
    )  # fmt: skip
