"""Conversion between protobuf messages and the agent's own types."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from penstock.devices.inventory import known
from penstock.model import PenstockError
from penstock.model.terms import DEFAULT_GRACE_NS, DEFAULT_MODE, DEFAULT_STEP
from penstock.node.admission.admit import Request
from penstock.node.admission.checks import check_grace, free_shares
from penstock.node.admission.resize import Resize
from penstock.node.rpc.message_bounds import KEPT_COMMAND_BYTES, check_request, shortened
from penstock_api.v1 import agent_pb2 as pb
from penstock_shim.pages import PageError, read_quota

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.timestamp_pb2 import Timestamp

    from penstock.devices import Device
    from penstock.model.terms import Mode, Step
    from penstock.node.admission.checks import Free
    from penstock.node.agent import Agent
    from penstock.node.agent.managed_tenant import ManagedTenant
    from penstock.node.tenants.grant import Lifetime

MODES: dict[int, Mode] = {pb.MODE_STRICT: "strict", pb.MODE_ELASTIC: "elastic"}
LIFETIMES: dict[int, Lifetime] = {
    pb.LIFETIME_UNTIL_REVOKED: "until-revoked",
    pb.LIFETIME_PROCESSES: "processes",
}
SHOWN_COMMAND_BYTES = 4096  # of a tenant's command shown in lists of tenants
STEPS: dict[int, Step] = {
    pb.STEP_DENY: "deny",
    pb.STEP_THROTTLE: "throttle",
    pb.STEP_SUSPEND: "suspend",
    pb.STEP_TERMINATE: "terminate",
}
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.1, 3600.0
MOST_FOREIGN = 8  # untracked processes listed per device
_NS = 10**9
Word = TypeVar("Word", bound=str)
Default = TypeVar("Default", bound="str | None")


def request_of(message: pb.GrantRequest) -> Request:
    """The request in a message. Raises `PenstockError` if a field is invalid."""
    check_request(message)
    if message.HasField("tflops") and not (math.isfinite(message.tflops) and message.tflops > 0):
        raise PenstockError(
            f"invalid tflops: {message.tflops:g}", "it must be a number above 0",
            "set a number above 0, or set cores_permille",
        )  # fmt: skip
    if message.HasField("tflops") and message.cores_permille:
        raise PenstockError(
            "both cores and tflops are set", "each sets the same share", "set only one"
        )
    if not message.name and not message.command:
        raise PenstockError(
            "the tenant has no name", "neither name nor command is set", "set one of them"
        )
    return Request(
        command=tuple(shortened(message.command, KEPT_COMMAND_BYTES)),
        memory_bytes=list(message.memory_bytes) or None,
        cores_permille=[_cores(permille) for permille in message.cores_permille] or None,
        tflops=message.tflops if message.HasField("tflops") else None,
        mode=_word("mode", MODES, message.mode, DEFAULT_MODE),
        devices=tuple(message.devices),
        count=message.count or 1,
        name=message.name or None,
        oversubscribe=message.oversubscribe,
        policy=message.policy or None,
        allow_unknown=message.allow_unknown,
        candidates=tuple(message.candidates),
        lifetime=_word("lifetime", LIFETIMES, message.lifetime, "until-revoked"),
        measured=_word("measured", STEPS, message.measured, DEFAULT_STEP),
        grace_ns=grace_ns(message),
        labels=dict(message.labels),
        container=message.container,
        request_id=message.request_id,
        bound_measured=message.bound_measured,
        bound_grace=message.bound_grace,
    )


def request_to(request: Request) -> pb.GrantRequest:
    """The message for a grant request."""
    message = pb.GrantRequest(
        name=request.name or "",
        devices=request.devices,
        count=request.count,
        memory_bytes=request.memory_bytes or (),
        cores_permille=request.cores_permille or (),
        mode=_name("MODE", request.mode),
        command=shortened(request.command),
        policy=request.policy or "",
        oversubscribe=request.oversubscribe,
        allow_unknown=request.allow_unknown,
        candidates=request.candidates,
        lifetime=_name("LIFETIME", request.lifetime),
        measured=_name("STEP", request.measured),
        labels=request.labels,
        container=request.container,
        request_id=request.request_id,
        bound_measured=request.bound_measured,
        bound_grace=request.bound_grace,
    )
    check_grace(request.grace_ns)
    message.grace.FromNanoseconds(request.grace_ns)
    if request.tflops is not None:
        message.tflops = request.tflops
    return message


def resize_of(message: pb.ResizeRequest) -> Resize:
    """The requested change of a quota."""
    return Resize(
        memory_bytes=message.memory_bytes if message.HasField("memory_bytes") else None,
        cores_permille=(
            _cores(message.cores_permille) if message.HasField("cores_permille") else None
        ),
        mode=_word("mode", MODES, message.mode, None),
        device=message.device or None,
        oversubscribe=message.oversubscribe,
        accounted=message.accounted,
        force=message.force,
    )


def resize_to(name: str, change: Resize) -> pb.ResizeRequest:
    """The message for a resize request."""
    return pb.ResizeRequest(
        name=name,
        memory_bytes=change.memory_bytes,
        cores_permille=change.cores_permille,
        mode=_name("MODE", change.mode),
        device=change.device or "",
        oversubscribe=change.oversubscribe,
        accounted=change.accounted,
        force=change.force,
    )


def tenant_to(managed: ManagedTenant, members: int | None) -> pb.Tenant:
    """A tenant's current state, as a message.

    `members`: the number of live processes according to the kernel, None before the first scan.
    """
    grant, usage, finding = managed.grant, managed.supervisor.usage, managed.finding
    suspended = False
    allowances = [device.cores_permille for device in grant.devices]
    try:
        limits = read_quota(managed.tenant.quota_page).limits
        suspended = limits.suspended or managed.is_held
        allowances = [device.allowance for device in limits.devices]
    except PageError as error:
        finding = finding or str(error)
    message = pb.Tenant(
        name=grant.tenant,
        user=grant.user,
        mode=_name("MODE", grant.mode),
        shares=[
            pb.Share(
                device_uuid=device.uuid,
                device_index=device.index,
                device_name=device.name,
                memory_bytes=device.memory_bytes,
                cores_permille=device.cores_permille,
                allowance_permille=allowance,
            )
            for device, allowance in zip(grant.devices, allowances, strict=True)
        ],
        command=shortened(grant.command, SHOWN_COMMAND_BYTES),
        policy=grant.policy or "",
        lifetime=_name("LIFETIME", grant.lifetime),
        suspended=suspended,
        oversubscribed=grant.oversubscribed,
        labels=grant.labels,
        directory=str(managed.tenant.directory),
        processes=len(usage.slots) if usage else 0,
        members=members,
        finding=finding or "",
        suspension=managed.suspension.state,
        host_bytes=managed.suspension.host_bytes,
        suspension_problem=managed.suspension.problem,
    )
    message.created.FromDatetime(_utc(grant.created))
    return message


def mode_of(message: pb.Tenant) -> Mode:
    """The tenant's mode as a word."""
    return MODES.get(message.mode, DEFAULT_MODE)


def node_to(agent: Agent, version: str) -> pb.Node:
    """The agent's node as a message."""
    node, grants = agent.node, agent.registry.grants()
    free = free_shares(node.devices, node.machine, grants)
    message = pb.Node(
        name=node.name,
        version=version,
        machine=node.machine or "",
        devices=[_device_to(agent, device, free[device.uuid]) for device in node.devices],
        tenants=len(grants),
        enforces=node.enforces,
        driver_released=node.source.released,
    )
    set_time(message.started, node.started_at)
    message.slowest_round.FromNanoseconds(agent.loop.slowest_iteration_ns())
    return message


def _device_to(agent: Agent, device: Device, free: Free) -> pb.Device:
    health, report = agent.devices.health(device.uuid), agent.devices.report_of(device.uuid)
    foreign = agent.enforcement.foreign_on(device.uuid)
    message = pb.Device(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        memory_bytes=device.memory_bytes,
        free_memory_bytes=free.memory_bytes,
        free_cores_permille=free.cores_permille,
        tflops=device.tflops,
        simulated=device.simulated,
        health=health.state,
        health_reason=health.reason,
        foreign_processes=len(foreign),
        foreign=[str(process)[:80] for process in foreign[:MOST_FOREIGN]],
        profile=device.profile or "",
        parent=device.parent or "",
        owner="pool" if device.uuid in agent.node.pool_devices else "",
    )
    if report is not None:
        message.driver_version = known(report.driver_version) or ""
        message.architecture = known(report.architecture) or ""
        message.cuda_version = report.attributes.get("cuda", "")
        message.compute_capability = report.attributes.get("compute_capability", "")
        message.checkpoint = report.attributes.get("checkpoint", "")
    return message


def grace_ns(message: pb.GrantRequest | pb.RevokeRequest) -> int:
    """The requested grace, or the default. Raises `PenstockError` if it is out of bounds."""
    if not message.HasField("grace"):
        return DEFAULT_GRACE_NS
    nanoseconds = message.grace.ToNanoseconds()
    check_grace(nanoseconds)
    return nanoseconds


def interval_s(message: pb.StreamUsageRequest) -> float:
    """Seconds between reports, 1 by default. Raises `PenstockError` if out of bounds."""
    if not message.HasField("interval"):
        return 1.0
    seconds = message.interval.ToNanoseconds() / _NS
    if not LEAST_INTERVAL_S <= seconds <= MOST_INTERVAL_S:
        raise PenstockError(
            f"invalid interval: {seconds:g}s",
            f"it must be from {LEAST_INTERVAL_S:g}s to {MOST_INTERVAL_S:g}s",
            "choose an interval in that range",
        )
    return seconds


def set_time(message: Timestamp, seconds: float) -> None:
    """Sets a timestamp from seconds since the epoch."""
    message.FromNanoseconds(int(seconds * _NS))


def _utc(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(timezone.utc)
    except ValueError:
        return datetime.fromtimestamp(0, timezone.utc)


def _cores(permille: int) -> int:
    if not 1 <= permille <= 1000:
        raise PenstockError(
            f"invalid cores_permille: {permille}",
            "a share is 1 to 1000 thousandths of a device", "set a value in that range",
        )  # fmt: skip
    return permille


def _word(field: str, words: Mapping[int, Word], number: int, default: Default) -> Word | Default:
    """The word for an enum number; 0 is the default. Raises `PenstockError` if unknown."""
    if number == 0:
        return default
    if number not in words:
        known = ", ".join(f"{key} ({word})" for key, word in words.items())
        raise PenstockError(
            f"unknown {field}: {number}", f"this agent knows {known}",
            "use one of these, or upgrade an agent that is older than its client",
        )  # fmt: skip
    return words[number]


def _name(kind: str, word: str | None) -> str:
    """The enum name of `word`; "unspecified" for a word that only `penstock run` uses."""
    if word is None or word == "command":
        word = "unspecified"
    return f"{kind}_{word.upper().replace('-', '_')}"
