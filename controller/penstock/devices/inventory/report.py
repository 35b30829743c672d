"""Device report: the state of a device of any kind, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from penstock.devices.inventory.figure import NotAvailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.devices.inventory.figure import Figure

Kind = Literal["nvidia", "simulated", "ascend", "amd", "tpu", "bpu", "fpga", "cpu"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Health:
    """A device's health as reported by its driver; `lost` means that it does not respond."""

    state: Literal["ok", "unhealthy", "lost"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


@dataclass(frozen=True)
class DeviceReport:
    """The state of one device at one moment."""

    kind: Kind
    index: int  # among devices of its kind
    id: str  # UUID, bus address or node: unique in its kind, and the same after a restart
    model: str
    bus_id: Figure[str]
    architecture: Figure[str]
    driver_version: Figure[str]
    memory_total_bytes: Figure[int]
    memory_used_bytes: Figure[int]
    busy_permille: Figure[int]  # over recent time
    temperature_celsius: Figure[int]
    power_milliwatts: Figure[int]
    health: Figure[Health]
    simulated: bool = False
    parent: str | None = None  # for a partition, the id of the whole device
    profile: str | None = None  # for a partition, its size in the vendor's terms
    attributes: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: null if not available, with the reason in `not_available`."""
        found: dict[str, Any] = {}
        lacking: dict[str, dict[str, str]] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, NotAvailable):
                lacking[one.name] = {"why": value.why, "fix": value.fix}
                value = None
            elif isinstance(value, Health):
                value = {"state": value.state, "reason": value.reason}
            elif one.name == "attributes":
                value = dict(value)
            found[one.name] = value
        return {**found, "not_available": lacking}


def blank(kind: Kind, index: int, ident: str, model: str, lacking: NotAvailable) -> DeviceReport:
    """A report in which all other values are missing, for the reason `lacking`."""
    return DeviceReport(
        kind=kind,
        index=index,
        id=ident,
        model=model,
        bus_id=lacking,
        architecture=lacking,
        driver_version=lacking,
        memory_total_bytes=lacking,
        memory_used_bytes=lacking,
        busy_permille=lacking,
        temperature_celsius=lacking,
        power_milliwatts=lacking,
        health=lacking,
    )


@dataclass(frozen=True)
class Survey:
    """The devices of one kind; `unavailable` says why there are none, or not all of them."""

    kind: Kind
    devices: tuple[DeviceReport, ...] = ()
    unavailable: NotAvailable | None = None

    def as_dict(self) -> dict[str, Any]:
        """The survey as plain values, for JSON."""
        lacking = self.unavailable
        return {
            "kind": self.kind,
            "devices": [device.as_dict() for device in self.devices],
            "unavailable": {"why": lacking.why, "fix": lacking.fix} if lacking else None,
        }


class Inventory(Protocol):
    """Surveys one kind of device on this machine."""

    @property
    def kind(self) -> Kind:
        """The kind of device."""

    def look(self) -> Survey:
        """The devices as they are now. Never raises; an unknown value is `NotAvailable`."""
