"""Meter readings: a tenant's identity and the values of its usage page at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.devices import DeviceProcess
    from penstock.node.tenants.grant import Grant
    from penstock.node.tenants.tenant import Tenant
    from penstock_shim.pages import UsageSnapshot


@dataclass(frozen=True)
class Identity:
    """A tenant from its grant to its end. A later tenant of that name has another incarnation."""

    incarnation: str  # unique among all usage pages that were ever on this node
    tenant: str
    user: str = ""
    policy: str = ""
    namespace: str = ""  # of Kubernetes; empty elsewhere, like the next two
    pod: str = ""
    container: str = ""


@dataclass(frozen=True)
class Measured:
    """The device's own figures of one tenant, never a shim's report. None: not reported."""

    busy_ns: int | None = None  # cumulative; falls when the device drops an ended process
    busy_permille: int | None = None  # recent use, if only that is known
    memory_bytes: int | None = None


@dataclass(frozen=True)
class DeviceReading:
    """A usage page's values for one device. The tenant wrote them, so none is trusted."""

    device_uuid: str
    spent_ns: int | None  # cumulative device time charged; None: the page cannot be read
    total_bytes: int  # the memory ledger's total now
    origin_ns: int | None = None  # CLOCK_MONOTONIC of the first launch; 0: none; None: not known
    device_memory_bytes: int | None = None  # the device's memory: no tenant holds more
    measured: Measured = Measured()


@dataclass(frozen=True)
class TenantReading:
    """One tenant at one moment."""

    identity: Identity
    devices: tuple[DeviceReading, ...]


def incarnation_of(tenant: Tenant, grant: Grant) -> str:
    """A name for this very usage page: the time of the grant, and the file's device and inode.

    The time alone could recur after a clock jump, the inode alone as soon as it is free.
    Raises OSError if the page is gone.
    """
    found = tenant.usage_page.lstat()
    return f"{grant.created}/{found.st_dev:x}:{found.st_ino:x}"


def identity_of(tenant: Tenant, grant: Grant, where: Mapping[str, str] | None = None) -> Identity:
    """The tenant's identity; `where`: its namespace, pod and container, if any. Raises OSError."""
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
    """A reading from a page just read; `measured`: the device's own figures by device UUID.

    If the page cannot be read (`usage` is None), it holds the device's figures only.
    """
    measured = measured or {}
    if usage is None:
        devices = (
            DeviceReading(uuid, None, 0, measured=figures) for uuid, figures in measured.items()
        )
        return TenantReading(identity, tuple(devices))
    return TenantReading(
        identity,
        tuple(
            DeviceReading(
                device_uuid=device.uuid,
                spent_ns=figures.spent_ns,
                total_bytes=figures.total_bytes,
                origin_ns=figures.origin_ns,
                device_memory_bytes=device.device_memory_bytes or None,
                measured=measured.get(device.uuid, Measured()),
            )
            for device, figures in zip(grant.devices, usage.devices, strict=False)
        ),
    )


def measured_of(own: Sequence[DeviceProcess]) -> Measured:
    """The device's figures for a tenant's processes `own`, ended ones included if known."""
    alive = [process for process in own if process.alive]
    busy = [process.busy_ns for process in own]
    shares = [process.busy_permille for process in alive]
    memory = [process.memory_bytes for process in alive]
    return Measured(
        busy_ns=_sum(busy) if own else None,
        busy_permille=_sum(shares) if alive else None,
        memory_bytes=_sum(memory),
    )


def _sum(amounts: Sequence[int | None]) -> int | None:
    """The sum; None if any value is not known: a partial sum would pass for the whole."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None
