"""gRPC service of the agent, which turns each call into a request of an identified principal."""

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

    from penstock.node.agent import Agent, Principal
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.rpc.call_limits import Calls, Kind
    from penstock.node.rpc.order_threads import Lane
    from penstock.node.tenants.grant import Grant
    from penstock_shim.pages import UsageSnapshot
    from penstock_shim.recent import RecentUse

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")
Context = Any  # grpc.aio.ServicerContext's type parameters do not matter here

FOLLOW_S = 0.2
READERS = 4


class AgentService(agent_pb2_grpc.AgentServicer):
    """The service of one agent. `identify` finds the principal of a call."""

    def __init__(
        self,
        agent: Agent,
        identify: Callable[[Context], Principal | None],
        calls: Calls,
    ) -> None:
        self._agent = agent
        self._identify = identify
        self._calls = calls
        # The pools are separate, so that clients that follow events do not delay requests.
        self._turns = Turns()
        self._readers = ThreadPoolExecutor(READERS, "readers")

    async def GetNode(self, request: pb.GetNodeRequest, context: Context) -> pb.Node:  # noqa: N802
        """See agent.proto."""
        del request
        return await self._answer(context, lambda _: convert.node_to(self._agent, __version__))

    async def Grant(self, request: pb.GrantRequest, context: Context) -> pb.GrantResponse:  # noqa: N802
        """See agent.proto."""

        def grant(caller: Principal) -> pb.GrantResponse:
            granted = self._agent.grant_order.grant(convert.request_of(request), caller)
            return pb.GrantResponse(
                tenant=self._tenant(granted.managed),
                notes=granted.notes,
                environment=granted.variables,
                cdi_devices=granted.cdi_devices,
            )

        return await self._answer(context, grant)

    async def Resize(self, request: pb.ResizeRequest, context: Context) -> pb.ResizeResponse:  # noqa: N802
        """See agent.proto."""

        def resize(caller: Principal) -> pb.ResizeResponse:
            managed, notes = self._agent.orders.resize(
                request.name, convert.resize_of(request), caller
            )
            return pb.ResizeResponse(tenant=self._tenant(managed), notes=notes)

        return await self._answer(context, resize)

    async def Suspend(self, request: pb.SuspendRequest, context: Context) -> pb.SuspendResponse:  # noqa: N802
        """See agent.proto."""

        def suspend(caller: Principal) -> pb.SuspendResponse:
            check_reason(request.reason)
            managed = self._agent.orders.suspend(
                request.name, caller, request.reason, release_memory=request.release_memory
            )
            return pb.SuspendResponse(tenant=self._tenant(managed))

        return await self._answer(context, suspend)

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:  # noqa: N802
        """See agent.proto."""
        return await self._answer(
            context,
            lambda caller: pb.ResumeResponse(
                tenant=self._tenant(
                    self._agent.orders.resume(request.name, caller, tuple(request.devices))
                )
            ),
        )

    async def Revoke(self, request: pb.RevokeRequest, context: Context) -> pb.RevokeResponse:  # noqa: N802
        """See agent.proto."""

        def revoke(caller: Principal) -> pb.RevokeResponse:
            check_reason(request.reason)
            grace_ns = convert.grace_ns(request)
            ended = self._agent.orders.revoke(request.name, grace_ns, caller, request.reason)
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
                tenants=[self._tenant(one) for one in self._agent.registry.managed_tenants()]
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
            tail = EventTail(self._agent.node.state, self._agent.registry, request.tenants)
            await self._in_reader_thread(tail.check)
        except PenstockError as error:
            await abort(context, error)
        while True:
            last = not request.follow or tail.is_over()
            for tenant, fields in await self._in_reader_thread(tail.read):
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
                self._agent.registry.managed(name)
        except PenstockError as error:
            await abort(context, error)
        while True:
            now = time.time()
            for managed in self._agent.registry.managed_tenants():
                if not wanted or managed.tenant.name in wanted:
                    co_tenant = self._agent.tenant_table.of(managed.tenant.directory)
                    usage = co_tenant.newest() if co_tenant is not None else None
                    if co_tenant is not None and usage is not None:
                        yield _report(managed.tenant.name, managed.grant, usage, co_tenant.use, now)
            await asyncio.sleep(interval_s)

    async def QueryUsage(  # noqa: N802
        self, request: pb.QueryUsageRequest, context: Context
    ) -> pb.QueryUsageResponse:
        """See agent.proto."""
        return await self._answer(
            context, lambda _: query_usage(self._agent.recorder, request), "query"
        )

    async def ReleaseDriver(  # noqa: N802
        self, request: pb.ReleaseDriverRequest, context: Context
    ) -> pb.ReleaseDriverResponse:
        """See agent.proto."""

        def release(caller: Principal) -> pb.ReleaseDriverResponse:
            check_reason(request.reason)
            self._agent.orders.release_driver(caller, request.reason)
            return pb.ReleaseDriverResponse()

        return await self._answer(context, release)

    async def ReopenDriver(  # noqa: N802
        self, request: pb.ReopenDriverRequest, context: Context
    ) -> pb.ReopenDriverResponse:
        """See agent.proto."""
        del request

        def reopen(caller: Principal) -> pb.ReopenDriverResponse:
            self._agent.orders.reopen_driver(caller)
            return pb.ReopenDriverResponse()

        return await self._answer(context, reopen)

    def _tenant(self, managed: ManagedTenant) -> pb.Tenant:
        return convert.tenant_to(managed, self._agent.enforcer.count(managed.tenant.name))

    async def _answer(
        self, context: Context, order: Callable[[Principal], Answer], kind: Kind = "order"
    ) -> Answer:
        """Runs the request in a thread; turns an error into a status with its reason."""
        caller = await self._caller(context)
        if context.time_remaining() is None:
            await abort(
                context,
                PenstockError("the call has no deadline", "every call needs one", "set a timeout"),
            )
        try:
            if kind == "revoke":  # a revocation lasts until the tenant's processes have ended
                return await self._in_own_thread(caller, kind, order)
            with self._calls.one(caller, kind):
                lane: Lane = "query" if kind == "query" else "order"
                return await self._turns.carry_out(caller, lane, lambda: order(caller))
        except (PenstockError, PageError, QuantityError, ArithmeticError, OSError) as error:
            await abort(context, _refusal_of(error))
            raise  # never reached: abort raises

    async def _in_own_thread(
        self, caller: Principal, kind: Kind, order: Callable[[Principal], Answer]
    ) -> Answer:
        """Runs and counts the request until it ends, even if the caller no longer waits."""
        counted = contextlib.ExitStack()
        counted.enter_context(self._calls.one(caller, kind))
        done: Future[Answer] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(order(caller))
            except BaseException as error:  # noqa: BLE001 - passed on to the waiting call
                done.set_exception(error)

        def ended(waited: asyncio.Future[Answer]) -> None:
            counted.close()
            waited.exception()  # retrieve the exception, in case nobody awaits it

        threading.Thread(target=run, name=kind, daemon=True).start()
        waited = asyncio.wrap_future(done)
        waited.add_done_callback(ended)
        return await asyncio.shield(waited)

    async def _in_reader_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

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
    with contextlib.suppress(KeyError, ValueError):  # the line was not written by us
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
                memory_bytes=figures.total_bytes if grant.holds_devices else 0,
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


def _refusal_of(error: Exception) -> PenstockError:
    """The error in the form that its caller sees."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, PageError):  # damaged by its tenant, or by another process
        return PenstockError(
            "the request failed", str(error),
            "revoke the tenant whose page is damaged (penstock revoke)", reason="not-now",
        )  # fmt: skip
    if isinstance(error, OSError):
        file = [str(error.filename)] if error.filename else []
        return PenstockError(
            "the request failed, and nothing was changed",
            ": ".join([error.strerror or str(error), *file]),
            "free up disk space, or repair the agent's state directory",
            reason="unavailable",
        )  # fmt: skip
    return PenstockError("invalid quantity", str(error), "use a valid quantity")
