"""What the agent shows of devices and tenants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.devices import Device
    from penstock.devices.inventory import DeviceReport, Health
    from penstock.node.admission.checks import Free
    from penstock.node.enforcement import Process
    from penstock.node.tenants.grant import Grant


@dataclass(frozen=True)
class DeviceView:
    """A device and what is left of it."""

    device: Device
    free: Free
    health: Health
    foreign: tuple[Process, ...] = ()  # on it, of no tenant
    report: DeviceReport | None = None  # as of the last look


@dataclass(frozen=True)
class TenantView:
    """A tenant as it is now."""

    grant: Grant
    directory: Path
    suspended: bool
    allowances: tuple[int, ...]  # permille, one for each device of the grant
    processes: int  # that hold a slot
    members: int | None  # that are there, by the kernel's word; None: nobody has looked yet
    finding: str | None  # what is wrong with it


@dataclass(frozen=True)
class NodeView:
    """The node, and how its agent is doing."""

    name: str
    machine: str | None
    devices: tuple[DeviceView, ...]
    started_at: float  # seconds since the epoch
    tenants: int
    slowest_round_ns: int  # of the last minute
    enforces: bool
    driver_released: str  # why; empty: the driver is in use


@dataclass(frozen=True)
class Granted:
    """What a new tenant's owner is told."""

    view: TenantView
    notes: tuple[str, ...]
    variables: dict[str, str]  # of a program on this machine; none of a container's
    cdi_devices: tuple[str, ...]  # of a container, ours first


@dataclass(frozen=True)
class Ended:
    """How the processes of a revoked tenant went."""

    ended: int
    killed: int
