"""Immutable snapshots passed by the agent to the exporter after each reconcile iteration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.node.metering.meter import Meter, MeterHealth
    from penstock.node.metering.metered_amounts import Amounts
    from penstock.node.metering.reading import Identity
    from penstock.node.tenants.grant import Grant
    from penstock_shim.pages import DeviceUsage, Limits, UsageSnapshot


@dataclass(frozen=True)
class ShareSnapshot:
    """A tenant's share of one device. None means unknown."""

    device_uuid: str
    memory_quota_bytes: int
    memory_used_bytes: int | None
    memory_peak_bytes: int | None
    memory_measured_bytes: int | None  # according to the device itself
    cores_quota_permille: int
    allowance_permille: int | None
    refusals: int | None
    launches: int | None
    waits: int | None
    waited_ns: int | None
    debts: int | None
    copies: int | None
    copied_bytes: int | None
    host_functions: int | None
    used: Amounts  # since the meter started, from `Meter.used`


@dataclass(frozen=True)
class TenantSnapshot:
    """One tenant, without its processes: one label per process would create one series each."""

    identity: Identity
    mode: str
    suspended: bool
    processes: int | None
    shares: tuple[ShareSnapshot, ...]
    events: Mapping[str, int] = field(default_factory=dict)  # by kind, since the agent started
    findings: Mapping[str, int] = field(default_factory=dict)  # open findings by kind
    heartbeat_ns: int | None = None  # CLOCK_MONOTONIC of the last heartbeat in the quota page


@dataclass(frozen=True)
class DeviceSnapshot:
    """One device. None means not reported."""

    device_uuid: str
    name: str
    simulated: bool
    available: bool  # False if lost or no longer responding
    memory_capacity_bytes: int | None
    memory_used_bytes: int | None
    memory_granted_bytes: int
    busy_permille: int | None
    cores_granted_permille: int
    healthy: bool | None = None  # False if lost, or if only a reset can help
    xids: Mapping[str, int] = field(default_factory=dict)  # XID errors since the agent started
    foreign_processes: int | None = None  # processes on the device that belong to no tenant


@dataclass(frozen=True)
class NodeSnapshot:
    """The node after one iteration of the agent's loop."""

    at_mono_ns: int  # when the iteration ended
    began_wall_ns: int  # when the agent started, since 1970
    version: str
    devices: tuple[DeviceSnapshot, ...]
    tenants: tuple[TenantSnapshot, ...]
    meter: MeterHealth
    damaged_tenants: int = 0  # tenants whose grant or pages cannot be read


def share_snapshots(
    identity: Identity,
    grant: Grant,
    limits: Limits | None,
    usage: UsageSnapshot | None,
    *,
    meter: Meter,
    measured_bytes: Mapping[str, int | None] | None = None,
) -> tuple[ShareSnapshot, ...]:
    """A tenant's share snapshots, from pages that the agent has read; None for damaged pages."""
    allowed = {one.uuid: one.allowance for one in limits.devices} if limits else {}
    measured = measured_bytes or {}
    found = []
    for index, device in enumerate(grant.devices):
        # Released memory is on no device, although the page keeps its charges.
        figures: DeviceUsage | None = usage.devices[index] if usage else None
        found.append(
            ShareSnapshot(
                device_uuid=device.uuid,
                memory_quota_bytes=device.memory_bytes,
                memory_used_bytes=(figures.total_bytes if grant.holds_devices else 0)
                if figures
                else None,
                memory_peak_bytes=figures.peak_bytes if figures else None,
                memory_measured_bytes=measured.get(device.uuid),
                cores_quota_permille=device.cores_permille,
                allowance_permille=allowed.get(device.uuid),
                refusals=figures.refusals if figures else None,
                launches=figures.launches if figures else None,
                waits=figures.waits if figures else None,
                waited_ns=figures.waited_ns if figures else None,
                debts=figures.debts if figures else None,
                copies=figures.copies if figures else None,
                copied_bytes=figures.copied_bytes if figures else None,
                host_functions=figures.host_functions if figures else None,
                used=meter.used(identity.incarnation, device.uuid),
            )
        )
    return tuple(found)
