"""The agent's service: each call is an order of its caller's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from penstock import __version__
from penstock.agent.books import Books
from penstock.agent.events import EventTail
from penstock.api import convert
from penstock.api.metered import query_usage
from penstock.api.status import CODES, trailer_of
from penstock.model import PenstockError
from penstock.node.grant import DEFAULT_GRACE_NS
from penstock_api.v1 import agent_pb2 as pb
from penstock_api.v1 import agent_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from penstock.agent import Agent, Caller, Orders
    from penstock.node.grant import Grant
    from penstock_shim.pages import UsageSnapshot
    from penstock_shim.recent import RecentUse

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")
Context = Any  # grpc.aio.ServicerContext is generic in what no method here uses

FOLLOW_S = 0.2
LEAST_INTERVAL_S = 0.1


class AgentService(agent_pb2_grpc.AgentServicer):
    """Serves one agent. `identify` tells who is behind a call."""

    def __init__(
        self, agent: Agent, orders: Orders, identify: Callable[[Context], Caller | None]
    ) -> None:
        self._agent = agent
        self._orders = orders
        self._identify = identify

    async def GetNode(self, request: pb.GetNodeRequest, context: Context) -> pb.Node:  # noqa: N802
        """See agent.proto."""
        del request
        return await self._answer(
            context, lambda _: convert.node_to(self._orders.node(), __version__)
        )

    async def Grant(self, request: pb.GrantRequest, context: Context) -> pb.GrantResponse:  # noqa: N802
        """See agent.proto."""

        def grant(caller: Caller) -> pb.GrantResponse:
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

        def resize(caller: Caller) -> pb.ResizeResponse:
            view, notes = self._orders.resize(request.name, convert.resize_of(request), caller)
            return pb.ResizeResponse(tenant=convert.tenant_to(view), notes=notes)

        return await self._answer(context, resize)

    async def Suspend(self, request: pb.SuspendRequest, context: Context) -> pb.SuspendResponse:  # noqa: N802
        """See agent.proto."""
        return await self._answer(
            context,
            lambda caller: pb.SuspendResponse(
                tenant=convert.tenant_to(self._orders.suspend(request.name, caller, request.reason))
            ),
        )

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

        def revoke(caller: Caller) -> pb.RevokeResponse:
            given = request.HasField("grace")
            grace_ns = convert.duration_ns(request.grace) if given else DEFAULT_GRACE_NS
            ended = self._orders.revoke(request.name, grace_ns, caller, request.reason)
            return pb.RevokeResponse(ended=ended.ended, killed=ended.killed)

        return await self._answer(context, revoke)

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
        )

    async def WatchEvents(  # noqa: N802
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.Event]:
        """See agent.proto."""
        await self._caller(context)
        tail = EventTail(self._agent, request.tenants)
        try:
            await _in_thread(tail.check)
        except PenstockError as error:
            await _abort(context, error)
        while True:
            last = not request.follow or tail.is_over()
            for tenant, fields in await _in_thread(tail.read):
                yield _event(tenant, fields)
            if last:
                return
            await asyncio.sleep(FOLLOW_S)

    async def StreamUsage(  # noqa: N802
        self, request: pb.StreamUsageRequest, context: Context
    ) -> AsyncIterator[pb.UsageReport]:
        """See agent.proto."""
        await self._caller(context)
        given = request.HasField("interval")
        interval_s = request.interval.ToNanoseconds() / 1e9 if given else 1.0
        wanted = set(request.tenants)
        while True:
            now = time.time()
            for ward in self._agent.wards():
                if not wanted or ward.tenant.name in wanted:
                    neighbour = self._agent.neighbourhood.of(ward.tenant.directory)
                    usage = neighbour.newest() if neighbour is not None else None
                    if neighbour is not None and usage is not None:
                        yield _report(ward.tenant.name, ward.grant, usage, neighbour.use, now)
            await asyncio.sleep(max(LEAST_INTERVAL_S, interval_s))

    async def QueryUsage(  # noqa: N802
        self, request: pb.QueryUsageRequest, context: Context
    ) -> pb.QueryUsageResponse:
        """See agent.proto."""
        return await self._answer(context, lambda _: query_usage(self._books(), request))

    def _books(self) -> Books:
        for duty in self._agent.duties:
            if isinstance(duty, Books):
                return duty
        raise PenstockError("this agent does not meter", "it keeps no readings", "ask another one")

    async def _answer(self, context: Context, order: Callable[[Caller], Answer]) -> Answer:
        """Carries the order out beside the loop; an error becomes a status with its reason."""
        caller = await self._caller(context)
        if context.time_remaining() is None:
            await _abort(
                context,
                PenstockError("the call has no deadline", "a call must end", "set a timeout"),
            )
        try:
            return await _in_thread(lambda: order(caller))
        except PenstockError as error:
            await _abort(context, error)
            raise  # never reached: abort raises
        except OSError as error:
            await _abort(
                context,
                PenstockError(
                    "the order was not carried out", _words(error),
                    "make room, or mend the agent's state directory; nothing was changed",
                    reason="unavailable",
                ),
            )  # fmt: skip
            raise

    async def _caller(self, context: Context) -> Caller:
        caller = self._identify(context)
        if caller is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "nobody knows who calls")
            raise AssertionError  # never reached: abort raises
        return caller


async def _abort(context: Context, error: PenstockError) -> None:
    await context.abort(CODES[error.reason], str(error), trailer_of(error))


async def _in_thread(work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _event(tenant: str, fields: dict[str, Any]) -> pb.Event:
    rest = {k: v for k, v in fields.items() if k not in ("time", "event", "reason")}
    message = pb.Event(
        tenant=tenant,
        event=str(fields.get("event", "")),
        reason=str(fields.get("reason") or ""),
        details=json.dumps(rest),
    )
    with contextlib.suppress(KeyError, ValueError):  # a line that somebody else wrote
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
