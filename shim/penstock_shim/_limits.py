"""A tenant's limits as validated values."""

from __future__ import annotations

import dataclasses
import uuid as uuid_module
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock_shim._native import ffi, lib

if TYPE_CHECKING:
    from penstock_shim._native import CData

Mode = Literal["strict", "elastic"]

MAX_DEVICES: int = lib.PENSTOCK_MAX_DEVICES
MAX_SLOTS: int = lib.PENSTOCK_MAX_SLOTS
UNIT_BYTES: int = lib.PENSTOCK_LEDGER_UNIT_BYTES
# 36 bits of units, see abi/ledger.h
MAX_MEMORY_BYTES: int = ((1 << 36) - 1) * UNIT_BYTES

_MODES: dict[Mode, int] = {
    "strict": lib.PENSTOCK_MODE_STRICT,
    "elastic": lib.PENSTOCK_MODE_ELASTIC,
}


def uuid_to_bytes(uuid: str) -> bytes:
    """16 bytes of a device UUID such as "GPU-…" or "MIG-…". Raises ValueError."""
    prefix, _, rest = uuid.partition("-")
    if prefix not in {"GPU", "MIG"} or len(rest) != 36:
        raise ValueError(
            f"{uuid!r} is no device UUID: expected GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
        )
    try:
        return uuid_module.UUID(rest).bytes
    except ValueError:
        raise ValueError(
            f"{uuid!r} is no device UUID: it holds other than hexadecimal digits"
        ) from None


def uuid_from_bytes(raw: bytes, *, is_mig: bool = False) -> str:
    """A device UUID as drivers print it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx."""
    return f"{'MIG' if is_mig else 'GPU'}-{uuid_module.UUID(bytes=raw)}"


@dataclass(frozen=True)
class DeviceLimit:
    """Limits on one device. Raises ValueError if a value is out of bounds."""

    uuid: str
    memory_bytes: int
    """Hard limit; the ledger rounds it down to units of 512 bytes."""
    cores_permille: int = 1000
    """Granted share of device time, 1 to 1000."""
    allowance_permille: int | None = None
    """Share allowed right now, at least `cores_permille`; None: the granted share."""
    context_reserve_bytes: int = 0
    """Charged for every context."""
    sharers: int = 1
    """Tenants with a grant on this device, this one included."""
    busy_sharers: int = 0
    """Those of them with work in the last second, this one included; 0: unknown."""

    def __post_init__(self) -> None:
        uuid_to_bytes(self.uuid)
        _within("memory_bytes", self.memory_bytes, UNIT_BYTES, MAX_MEMORY_BYTES)
        _within("cores_permille", self.cores_permille, 1, 1000)
        _within("allowance_permille", self.allowance, self.cores_permille, 1000)
        _within("context_reserve_bytes", self.context_reserve_bytes, 0, MAX_MEMORY_BYTES)
        _within("sharers", self.sharers, 1, 2**32 - 1)
        _within("busy_sharers", self.busy_sharers, 0, self.sharers)

    @property
    def allowance(self) -> int:
        """The share allowed right now, in thousandths."""
        return self.cores_permille if self.allowance_permille is None else self.allowance_permille


@dataclass(frozen=True)
class Limits:
    """A tenant's limits on all its devices. Raises ValueError if they are invalid."""

    devices: tuple[DeviceLimit, ...]
    mode: Mode = "strict"
    suspended: bool = False
    """Launches wait until this is cleared."""
    allow_unknown: bool = False
    """Unknown allocation- and launch-like driver names are passed on."""
    record: bool = False
    """Names that are only forwarded are counted too."""
    generation: int = dataclasses.field(default=0, compare=False)
    """Increases with every change; set by the writer."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.devices) <= MAX_DEVICES:
            raise ValueError(f"{len(self.devices)} devices: a tenant has 1 to {MAX_DEVICES}")
        if len({device.uuid.lower() for device in self.devices}) != len(self.devices):
            raise ValueError("a device is named twice")
        if self.mode not in _MODES:
            raise ValueError(f"mode {self.mode!r}: expected strict or elastic")


def _within(name: str, value: int, low: int, high: int) -> None:
    # The C struct would silently truncate a float.
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}: expected a whole number from {low} to {high}")


def to_struct(limits: Limits) -> CData:
    """A new `penstock_limits`."""
    out = ffi.new("penstock_limits *")
    out.mode = _MODES[limits.mode]
    out.flags = (
        (lib.PENSTOCK_TENANT_SUSPENDED if limits.suspended else 0)
        | (lib.PENSTOCK_TENANT_ALLOW_UNKNOWN if limits.allow_unknown else 0)
        | (lib.PENSTOCK_TENANT_RECORD if limits.record else 0)
    )
    out.device_count = len(limits.devices)
    for to, device in zip(out.devices, limits.devices, strict=False):
        to.uuid = uuid_to_bytes(device.uuid)
        to.device_flags = lib.PENSTOCK_DEVICE_MIG if device.uuid.startswith("MIG-") else 0
        to.memory_bytes = device.memory_bytes
        to.context_reserve_bytes = device.context_reserve_bytes
        to.cores_permille = device.cores_permille
        to.allowance_permille = device.allowance
        to.sharers = device.sharers
        to.busy_sharers = device.busy_sharers
    return out


def from_struct(struct: CData) -> Limits:
    """The limits in a `penstock_limits`. Raises ValueError if a field is out of bounds."""
    if struct.device_count > MAX_DEVICES:
        raise ValueError(f"{struct.device_count} devices: a tenant has 1 to {MAX_DEVICES}")
    modes = {number: name for name, number in _MODES.items()}
    if struct.mode not in modes:
        raise ValueError(f"mode {struct.mode} is unknown")
    return Limits(
        devices=tuple(_device_from_struct(struct.devices[i]) for i in range(struct.device_count)),
        mode=modes[struct.mode],
        suspended=bool(struct.flags & lib.PENSTOCK_TENANT_SUSPENDED),
        allow_unknown=bool(struct.flags & lib.PENSTOCK_TENANT_ALLOW_UNKNOWN),
        record=bool(struct.flags & lib.PENSTOCK_TENANT_RECORD),
        generation=struct.generation,
    )


def _device_from_struct(struct: CData) -> DeviceLimit:
    cores = struct.cores_permille
    return DeviceLimit(
        uuid=uuid_from_bytes(
            bytes(struct.uuid), is_mig=bool(struct.device_flags & lib.PENSTOCK_DEVICE_MIG)
        ),
        memory_bytes=struct.memory_bytes,
        context_reserve_bytes=struct.context_reserve_bytes,
        cores_permille=cores,
        # None: the allowance follows a change of cores.
        allowance_permille=(
            None if struct.allowance_permille == cores else struct.allowance_permille
        ),
        sharers=struct.sharers,
        busy_sharers=struct.busy_sharers,
    )
