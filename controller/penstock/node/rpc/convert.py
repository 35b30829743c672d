"""Conversion between protobuf messages and the agent's own types."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from penstock.devices.inventory import known
from penstock.model import PenstockError
from penstock.model.limits import DEFAULT_GRACE_NS, DEFAULT_STEP
from penstock.node.admission.admit import Request
from penstock.node.admission.checks import check_grace
from penstock.node.admission.resize import Resize
from penstock.node.rpc.message_bounds import KEPT_COMMAND_BYTES, check_request, shortened
from penstock_api.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.timestamp_pb2 import Timestamp

    from penstock.model.limits import Mode, Step
    from penstock.node.agent import TenantView
    from penstock.node.agent.view import DeviceView, NodeView
    from penstock.node.tenants.grant import Lifetime

MODES: dict[int, Mode] = {pb.MODE_STRICT: "strict", pb.MODE_ELASTIC: "elastic"}
LIFETIMES: dict[int, Lifetime] = {
    pb.LIFETIME_UNTIL_REVOKED: "until-revoked",
    pb.LIFETIME_PROCESSES: "processes",
}
SHOWN_COMMAND_BYTES = 4096  # of a tenant's command in lists of tenants
STEPS: dict[int, Step] = {
    pb.STEP_DENY: "deny",
    pb.STEP_THROTTLE: "throttle",
    pb.STEP_SUSPEND: "suspend",
    pb.STEP_TERMINATE: "terminate",
}
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.1, 3600.0
MOST_FOREIGN = 8  # untracked processes named per device
_NS = 10**9
Word = TypeVar("Word", bound=str)
Default = TypeVar("Default", bound="str | None")


def request_of(message: pb.GrantRequest) -> Request:
    """The request in a message. Raises `PenstockError` for invalid fields."""
    check_request(message)
    if message.HasField("tflops") and not (math.isfinite(message.tflops) and message.tflops > 0):
        raise PenstockError(
            f"invalid tflops: {message.tflops:g}", "it must be a number above 0",
            "set one, or set cores_permille",
        )  # fmt: skip
    if message.HasField("tflops") and message.cores_permille:
        raise PenstockError("both cores and tflops are requested", "", "set only one of them")
    if not message.name and not message.command:
        raise PenstockError(
            "the tenant has no name", "neither name nor command is set", "set one of them"
        )
    return Request(
        command=tuple(shortened(message.command, KEPT_COMMAND_BYTES)),
        memory_bytes=list(message.memory_bytes) or None,
        cores_permille=[_cores(permille) for permille in message.cores_permille] or None,
        tflops=message.tflops if message.HasField("tflops") else None,
        mode=_word("mode", MODES, message.mode, "strict"),
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


def tenant_to(view: TenantView) -> pb.Tenant:
    """A tenant as a message."""
    grant = view.grant
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
            for device, allowance in zip(grant.devices, view.allowances, strict=True)
        ],
        command=shortened(grant.command, SHOWN_COMMAND_BYTES),
        policy=grant.policy or "",
        lifetime=_name("LIFETIME", grant.lifetime),
        suspended=view.suspended,
        oversubscribed=grant.oversubscribed,
        labels=grant.labels,
        directory=str(view.directory),
        processes=view.processes,
        members=view.members,
        finding=view.finding or "",
    )
    message.created.FromDatetime(_utc(grant.created))
    return message


def mode_of(message: pb.Tenant) -> Mode:
    """The tenant's mode as a word."""
    return MODES.get(message.mode, "strict")


def node_to(view: NodeView, version: str) -> pb.Node:
    """The node as a message."""
    message = pb.Node(
        name=view.name,
        version=version,
        machine=view.machine or "",
        devices=[_device_to(one) for one in view.devices],
        tenants=view.tenants,
        enforces=view.enforces,
        driver_released=view.driver_released,
    )
    set_time(message.started, view.started_at)
    message.slowest_round.FromNanoseconds(view.slowest_round_ns)
    return message


def _device_to(view: DeviceView) -> pb.Device:
    device, report = view.device, view.report
    message = pb.Device(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        memory_bytes=device.memory_bytes,
        free_memory_bytes=view.free.memory_bytes,
        free_cores_permille=view.free.cores_permille,
        tflops=device.tflops,
        simulated=device.simulated,
        health=view.health.state,
        health_reason=view.health.reason,
        foreign_processes=len(view.foreign),
        foreign=[str(process)[:80] for process in view.foreign[:MOST_FOREIGN]],
        profile=device.profile or "",
        parent=device.parent or "",
    )
    if report is not None:
        message.driver_version = known(report.driver_version) or ""
        message.architecture = known(report.architecture) or ""
        message.cuda_version = report.attributes.get("cuda", "")
        message.compute_capability = report.attributes.get("compute_capability", "")
        message.checkpoint = report.attributes.get("checkpoint", "")
    return message


def grace_ns(message: pb.GrantRequest | pb.RevokeRequest) -> int:
    """The requested grace, or the default. Raises `PenstockError` for one out of bounds."""
    if not message.HasField("grace"):
        return DEFAULT_GRACE_NS
    nanoseconds = message.grace.ToNanoseconds()
    check_grace(nanoseconds)
    return nanoseconds


def interval_s(message: pb.StreamUsageRequest) -> float:
    """Seconds between reports; 1 by default. Raises `PenstockError` for one out of bounds."""
    if not message.HasField("interval"):
        return 1.0
    seconds = message.interval.ToNanoseconds() / _NS
    if not LEAST_INTERVAL_S <= seconds <= MOST_INTERVAL_S:
        raise PenstockError(
            f"invalid interval: {seconds:g}s",
            f"it must be from {LEAST_INTERVAL_S:g}s to {MOST_INTERVAL_S:g}s",
            "choose an interval within that",
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
            "a share is 1 to 1000 thousandths of a device", "set a value within that",
        )  # fmt: skip
    return permille


def _word(field: str, words: Mapping[int, Word], number: int, default: Default) -> Word | Default:
    """The word for an enumeration's number; 0 is the default. Raises `PenstockError`."""
    if number == 0:
        return default
    if number not in words:
        known = ", ".join(f"{key} ({word})" for key, word in words.items())
        raise PenstockError(
            f"unknown {field}: {number}", f"this agent knows {known}",
            "use one of them; a newer client may know more than an older agent",
        )  # fmt: skip
    return words[number]


def _name(kind: str, word: str | None) -> str:
    """The enumeration's name for `word`; "unspecified" for words that only `penstock run` has."""
    if word is None or word == "command":
        word = "unspecified"
    return f"{kind}_{word.upper().replace('-', '_')}"
