"""Read-only views of devices, tenants and the node, as the agent reports them."""

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
    """A device and its free share."""

    device: Device
    free: Free
    health: Health
    foreign: tuple[Process, ...] = ()  # untracked processes on it
    report: DeviceReport | None = None  # as of the last poll


@dataclass(frozen=True)
class TenantView:
    """A tenant as it is now."""

    grant: Grant
    directory: Path
    suspended: bool
    allowances: tuple[int, ...]  # permille, one for each device of the grant
    processes: int  # that hold a slot
    members: int | None  # live processes as the kernel shows them; None: no scan yet
    finding: str | None  # what is wrong with it


@dataclass(frozen=True)
class NodeView:
    """The node and the state of its agent."""

    name: str
    machine: str | None
    devices: tuple[DeviceView, ...]
    started_at: float  # seconds since the epoch
    tenants: int
    slowest_round_ns: int  # longest iteration of the last minute
    enforces: bool
    driver_released: str  # the reason; empty: the driver is in use


@dataclass(frozen=True)
class Granted:
    """The answer to the owner of a new tenant."""

    view: TenantView
    notes: tuple[str, ...]
    variables: dict[str, str]  # environment of a program on this machine; empty for containers
    cdi_devices: tuple[str, ...]  # for a container, ours first


@dataclass(frozen=True)
class Ended:
    """How the processes of a revoked tenant ended."""

    ended: int
    killed: int
