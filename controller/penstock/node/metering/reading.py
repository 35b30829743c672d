"""Meter readings: a tenant's identity, and the values in its usage page at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.tenant import Tenant
    from penstock_shim.pages import UsageSnapshot


@dataclass(frozen=True)
class Identity:
    """A tenant from grant to end. A later tenant of the same name has another incarnation."""

    incarnation: str  # unique among all usage pages that this node ever had
    tenant: str
    user: str = ""
    policy: str = ""
    namespace: str = ""  # in Kubernetes; empty elsewhere, like pod and container
    pod: str = ""
    container: str = ""


@dataclass(frozen=True)
class Measured:
    """The device's own figures for one tenant, never the shim's. None means not reported."""

    busy_ns: int | None = None  # cumulative; falls when the device drops an ended process
    busy_permille: int | None = None  # recent use, if the device reports only that
    memory_bytes: int | None = None


@dataclass(frozen=True)
class DeviceReading:
    """A usage page's values for one device. The tenant wrote them, so none of them is trusted."""

    device_uuid: str
    spent_ns: int | None  # cumulative device time charged; None if the page is unreadable
    total_bytes: int  # the memory ledger's total now
    origin_ns: int | None = None  # CLOCK_MONOTONIC of the first launch; 0 if none, None if unknown
    device_memory_bytes: int | None = None  # the device's memory, which no tenant can exceed
    measured: Measured = Measured()


@dataclass(frozen=True)
class TenantReading:
    """One tenant's reading at one moment, for all its devices."""

    identity: Identity
    devices: tuple[DeviceReading, ...]


def incarnation_of(tenant: Tenant, grant: Grant) -> str:
    """A name for this usage page alone, from the grant's time and the file's device and inode.

    A time alone could recur after a clock jump, and an inode alone could recur once it is free.

    Raises:
        OSError: the page is gone.
    """
    found = tenant.usage_page.lstat()
    return f"{grant.created}/{found.st_dev:x}:{found.st_ino:x}"


def identity_of(tenant: Tenant, grant: Grant, where: Mapping[str, str] | None = None) -> Identity:
    """The tenant's identity. `where`: namespace, pod and container, if any. Raises OSError."""
    where = where or {}
    return Identity(
        incarnation=incarnation_of(tenant, grant),
        tenant=tenant.name,
        user=grant.user,
        policy=(grant.policy or "").partition(" (")[0],  # without file and line
        namespace=where.get("namespace", ""),
        pod=where.get("pod", ""),
        container=where.get("container", ""),
    )


def reading_of(
    identity: Identity,
    grant: Grant,
    usage: UsageSnapshot | None,
    measured: Mapping[str, Measured] | None = None,
) -> TenantReading:
    """A reading from a page just read. `measured`: the device's own figures by device UUID.

    If the page cannot be read (`usage` is None), the reading has only the device's figures. Memory
    that was released counts as none, although the page keeps its charges.
    """
    measured = measured or {}
    if usage is None:
        return TenantReading(
            identity,
            tuple(
                DeviceReading(uuid, None, 0, measured=figures) for uuid, figures in measured.items()
            ),
        )
    devices = tuple(
        DeviceReading(
            device_uuid=device.uuid,
            spent_ns=grant.spent_on_device_ns(index, figures.spent_ns),
            total_bytes=figures.total_bytes if grant.holds_devices else 0,
            origin_ns=figures.origin_ns,
            device_memory_bytes=device.device_memory_bytes or None,
            measured=measured.get(device.uuid, Measured()),
        )
        for index, (device, figures) in enumerate(zip(grant.devices, usage.devices, strict=False))
    )
    here = {device.uuid for device in grant.devices}
    left = tuple(  # what was spent there just before a move may not have been read yet
        DeviceReading(uuid, spent_ns, 0)
        for uuid, spent_ns in grant.charged_ns.items()
        if uuid not in here
    )
    return TenantReading(identity, devices + left)
