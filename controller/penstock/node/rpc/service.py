"""gRPC service of the agent: each call becomes a request of an identified principal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from penstock import __version__
from penstock.model import PenstockError, QuantityError
from penstock.node.agent.event_feed import EventTail
from penstock.node.agent.usage_recorder import UsageRecorder
from penstock.node.rpc import convert
from penstock.node.rpc.message_bounds import check_names, check_reason
from penstock.node.rpc.order_threads import Turns
from penstock.node.rpc.status import abort
from penstock.node.rpc.usage_query import query_usage
from penstock_api.v1 import agent_pb2 as pb
from penstock_api.v1 import agent_pb2_grpc
from penstock_shim.pages import PageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from penstock.node.agent import Agent, Orders, Principal
    from penstock.node.rpc.call_limits import Calls, Kind
    from penstock.node.rpc.order_threads import Lane
    from penstock.node.tenants.grant import Grant
    from penstock_shim.pages import UsageSnapshot
    from penstock_shim.recent import RecentUse

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")
Context = Any  # grpc.aio.ServicerContext's type parameters do not matter here

FOLLOW_S = 0.2
LOOKS_AT_ONCE = 4


class AgentService(agent_pb2_grpc.AgentServicer):
    """Serves one agent. `identify` finds the principal of a call."""

    def __init__(
        self,
        agent: Agent,
        orders: Orders,
        identify: Callable[[Context], Principal | None],
        calls: Calls,
    ) -> None:
        self._agent = agent
        self._orders = orders
        self._identify = identify
        self._calls = calls
        # Separate pools, so that event followers delay no requests.
        self._turns = Turns()
        self._at_looks = ThreadPoolExecutor(LOOKS_AT_ONCE, "looks")

    async def GetNode(self, request: pb.GetNodeRequest, context: Context) -> pb.Node:  # noqa: N802
        """See agent.proto."""
        del request
        return await self._answer(
            context, lambda _: convert.node_to(self._orders.node(), __version__)
        )

    async def Grant(self, request: pb.GrantRequest, context: Context) -> pb.GrantResponse:  # noqa: N802
        """See agent.proto."""

        def grant(caller: Principal) -> pb.GrantResponse:
            granted = self._orders.grant(convert.request_of(request), caller)
            return pb.GrantResponse(
                tenant=convert.tenant_to(granted.view),
                notes=granted.notes,
                environment=granted.variables,
                cdi_devices=granted.cdi_devices,
            )

        return await self._answer(context, grant)

    async def Resize(self, request: pb.ResizeRequest, context: Context) -> pb.ResizeResponse:  # noqa: N802
        """See agent.proto."""

        def resize(caller: Principal) -> pb.ResizeResponse:
            view, notes = self._orders.resize(request.name, convert.resize_of(request), caller)
            return pb.ResizeResponse(tenant=convert.tenant_to(view), notes=notes)

        return await self._answer(context, resize)

    async def Suspend(self, request: pb.SuspendRequest, context: Context) -> pb.SuspendResponse:  # noqa: N802
        """See agent.proto."""

        def suspend(caller: Principal) -> pb.SuspendResponse:
            check_reason(request.reason)
            view = self._orders.suspend(request.name, caller, request.reason)
            return pb.SuspendResponse(tenant=convert.tenant_to(view))

        return await self._answer(context, suspend)

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:  # noqa: N802
        """See agent.proto."""
        return await self._answer(
            context,
            lambda caller: pb.ResumeResponse(
                tenant=convert.tenant_to(self._orders.resume(request.name, caller))
            ),
        )

    async def Revoke(self, request: pb.RevokeRequest, context: Context) -> pb.RevokeResponse:  # noqa: N802
        """See agent.proto."""

        def revoke(caller: Principal) -> pb.RevokeResponse:
            check_reason(request.reason)
            grace_ns = convert.grace_ns(request)
            ended = self._orders.revoke(request.name, grace_ns, caller, request.reason)
            return pb.RevokeResponse(ended=ended.ended, killed=ended.killed)

        return await self._answer(context, revoke, "revoke")

    async def ListTenants(  # noqa: N802
        self, request: pb.ListTenantsRequest, context: Context
    ) -> pb.ListTenantsResponse:
        """See agent.proto."""
        del request
        return await self._answer(
            context,
            lambda _: pb.ListTenantsResponse(
                tenants=[convert.tenant_to(view) for view in self._orders.tenants()]
            ),
            "query",
        )

    async def WatchEvents(  # noqa: N802
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.Event]:
        """See agent.proto."""
        await self._caller(context)
        try:
            check_names(request.tenants)
            tail = EventTail(self._agent, request.tenants)
            await self._look(tail.check)
        except PenstockError as error:
            await abort(context, error)
        while True:
            last = not request.follow or tail.is_over()
            for tenant, fields in await self._look(tail.read):
                yield _event(tenant, fields)
            if last:
                return
            await asyncio.sleep(FOLLOW_S)

    async def StreamUsage(  # noqa: N802
        self, request: pb.StreamUsageRequest, context: Context
    ) -> AsyncIterator[pb.UsageReport]:
        """See agent.proto."""
        await self._caller(context)
        try:
            interval_s = convert.interval_s(request)
            check_names(request.tenants)
            wanted = set(request.tenants)
            for name in sorted(wanted):
                self._agent.managed(name)
        except PenstockError as error:
            await abort(context, error)
        while True:
            now = time.time()
            for managed in self._agent.managed_tenants():
                if not wanted or managed.tenant.name in wanted:
                    neighbour = self._agent.tenant_table.of(managed.tenant.directory)
                    usage = neighbour.newest() if neighbour is not None else None
                    if neighbour is not None and usage is not None:
                        yield _report(managed.tenant.name, managed.grant, usage, neighbour.use, now)
            await asyncio.sleep(interval_s)

    async def QueryUsage(  # noqa: N802
        self, request: pb.QueryUsageRequest, context: Context
    ) -> pb.QueryUsageResponse:
        """See agent.proto."""
        return await self._answer(
            context, lambda _: query_usage(self._recorder(), request), "query"
        )

    async def ReleaseDriver(  # noqa: N802
        self, request: pb.ReleaseDriverRequest, context: Context
    ) -> pb.ReleaseDriverResponse:
        """See agent.proto."""

        def release(caller: Principal) -> pb.ReleaseDriverResponse:
            check_reason(request.reason)
            self._orders.release_driver(caller, request.reason)
            return pb.ReleaseDriverResponse()

        return await self._answer(context, release)

    async def ReopenDriver(  # noqa: N802
        self, request: pb.ReopenDriverRequest, context: Context
    ) -> pb.ReopenDriverResponse:
        """See agent.proto."""
        del request

        def reopen(caller: Principal) -> pb.ReopenDriverResponse:
            self._orders.reopen_driver(caller)
            return pb.ReopenDriverResponse()

        return await self._answer(context, reopen)

    def _recorder(self) -> UsageRecorder:
        for periodic_task in self._agent.periodic_tasks:
            if isinstance(periodic_task, UsageRecorder):
                return periodic_task
        raise PenstockError("this agent does not meter", "it keeps no records", "ask another one")

    async def _answer(
        self, context: Context, order: Callable[[Principal], Answer], kind: Kind = "order"
    ) -> Answer:
        """Runs the request in a thread; an error becomes a status with its reason."""
        caller = await self._caller(context)
        if context.time_remaining() is None:
            await abort(
                context,
                PenstockError("the call has no deadline", "every call needs one", "set a timeout"),
            )
        try:
            if kind == "revoke":  # which lasts as long as the tenant's processes do
                return await self._in_own_thread(caller, kind, order)
            with self._calls.one(caller, kind):
                lane: Lane = "query" if kind == "query" else "order"
                return await self._turns.carry_out(caller, lane, lambda: order(caller))
        except PenstockError as error:
            await abort(context, error)
            raise  # never reached: abort raises
        except PageError as error:  # a tenant damages its own page, or another process the node's
            await abort(
                context,
                PenstockError(
                    "the order was not carried out", str(error),
                    "that page is damaged: revoke its tenant (penstock revoke)", reason="not-now",
                ),
            )  # fmt: skip
            raise
        except (QuantityError, ArithmeticError) as error:
            await abort(
                context,
                PenstockError("invalid quantity", str(error), "give another one"),
            )
            raise
        except OSError as error:
            await abort(
                context,
                PenstockError(
                    "the order was not carried out", _words(error),
                    "free space, or repair the agent's state directory; nothing was changed",
                    reason="unavailable",
                ),
            )  # fmt: skip
            raise

    async def _in_own_thread(
        self, caller: Principal, kind: Kind, order: Callable[[Principal], Answer]
    ) -> Answer:
        """Runs and counts the request to its end, even if the caller no longer waits."""
        counted = contextlib.ExitStack()
        counted.enter_context(self._calls.one(caller, kind))
        done: Future[Answer] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(order(caller))
            except BaseException as error:  # noqa: BLE001 - passed on to the waiter
                done.set_exception(error)

        def ended(waited: asyncio.Future[Answer]) -> None:
            counted.close()
            waited.exception()  # retrieved, as nobody may await it

        threading.Thread(target=run, name=kind, daemon=True).start()
        waited = asyncio.wrap_future(done)
        waited.add_done_callback(ended)
        return await asyncio.shield(waited)

    async def _look(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._at_looks, work)

    async def _caller(self, context: Context) -> Principal:
        caller = self._identify(context)
        if caller is None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "the caller cannot be identified; over TLS a certificate needs a name",
            )
            raise AssertionError  # never reached: abort raises
        return caller


def _event(tenant: str, fields: dict[str, Any]) -> pb.Event:
    rest = {k: v for k, v in fields.items() if k not in ("time", "event", "reason")}
    message = pb.Event(
        tenant=tenant,
        event=str(fields.get("event", "")),
        reason=str(fields.get("reason") or ""),
        details=json.dumps(rest),
    )
    with contextlib.suppress(KeyError, ValueError):  # not one of our lines
        at = datetime.fromisoformat(str(fields["time"])).astimezone(timezone.utc)
        message.time.FromDatetime(at)
    return message


def _report(
    tenant: str,
    grant: Grant,
    usage: UsageSnapshot,
    use: Mapping[str, RecentUse],
    now: float,
) -> pb.UsageReport:
    devices = []
    for index, device in enumerate(grant.devices):
        figures = usage.devices[index]
        devices.append(
            pb.DeviceUsage(
                device_uuid=device.uuid,
                memory_bytes=figures.total_bytes,
                peak_memory_bytes=figures.peak_bytes,
                spent_ns=figures.spent_ns,
                cores_permille=use[device.uuid].permille if device.uuid in use else 0,
                launches=figures.launches,
                waits=figures.waits,
                refusals=figures.refusals,
            )
        )
    report = pb.UsageReport(tenant=tenant, devices=devices, processes=len(usage.slots))
    convert.set_time(report.time, now)
    return report


def _words(error: OSError) -> str:
    words = [error.strerror or str(error), *([str(error.filename)] if error.filename else [])]
    return ": ".join(words)
