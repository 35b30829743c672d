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
# abi/ledger.h counts units in 36 bits.
MAX_MEMORY_BYTES: int = ((1 << 36) - 1) * UNIT_BYTES

_MODES: dict[Mode, int] = {
    "strict": lib.PENSTOCK_MODE_STRICT,
    "elastic": lib.PENSTOCK_MODE_ELASTIC,
}


def uuid_to_bytes(uuid: str) -> bytes:
    """Returns the 16 bytes of a device UUID such as "GPU-…" or "MIG-…". Raises ValueError."""
    prefix, _, rest = uuid.partition("-")
    if prefix not in {"GPU", "MIG"} or len(rest) != 36:
        raise ValueError(
            f"{uuid!r} is not a device UUID: expected GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
        )
    try:
        return uuid_module.UUID(rest).bytes
    except ValueError:
        raise ValueError(
            f"{uuid!r} is not a device UUID: it contains characters that are not hexadecimal"
        ) from None


def uuid_from_bytes(raw: bytes, *, is_mig: bool = False) -> str:
    """Returns a device UUID as drivers print it: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx."""
    return f"{'MIG' if is_mig else 'GPU'}-{uuid_module.UUID(bytes=raw)}"


@dataclass(frozen=True)
class DeviceLimit:
    """A tenant's limits on one device. Raises ValueError if a value is out of bounds."""

    uuid: str
    memory_bytes: int
    """Hard memory limit, which the ledger rounds down to units of 512 bytes."""
    cores_permille: int = 1000
    """Granted share of device time, 1 to 1000."""
    allowance_permille: int | None = None
    """Share allowed at the moment, at least `cores_permille`; None means the granted share."""
    context_reserve_bytes: int = 0
    """Memory charged for every context."""
    sharers: int = 1
    """Number of tenants with a grant on this device, including this one."""
    busy_sharers: int = 0
    """Number of these tenants with work in the last second, including this one; 0 if unknown."""

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
        """The share allowed at the moment, in thousandths."""
        return self.cores_permille if self.allowance_permille is None else self.allowance_permille


@dataclass(frozen=True)
class Limits:
    """A tenant's limits on all its devices. Raises ValueError if they are invalid."""

    devices: tuple[DeviceLimit, ...]
    mode: Mode = "strict"
    suspended: bool = False
    """Whether launches wait until this is cleared."""
    allow_unknown: bool = False
    """Whether unknown driver functions that may allocate or launch are passed on."""
    record: bool = False
    """Whether driver functions that are only forwarded are counted too."""
    released: bool = False
    """Whether device memory is released: processes do not begin to use a device meanwhile."""
    released_ns: int = 0
    """CLOCK_MONOTONIC time of the last release, when no work was on a device; 0 before the first.

    It stays when `released` is cleared. Windows of measured time that began before it end there.
    """
    generation: int = dataclasses.field(default=0, compare=False)
    """Change counter, set by the writer."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.devices) <= MAX_DEVICES:
            raise ValueError(f"a tenant has 1 to {MAX_DEVICES} devices, not {len(self.devices)}")
        if len({device.uuid.lower() for device in self.devices}) != len(self.devices):
            raise ValueError("the same device is listed twice")
        if self.mode not in _MODES:
            raise ValueError(f"invalid mode {self.mode!r}: expected strict or elastic")
        _within("released_ns", self.released_ns, 0, 2**63 - 1)


def _within(name: str, value: int, low: int, high: int) -> None:
    # The C struct would silently truncate a float.
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"invalid {name} {value!r}: expected an integer from {low} to {high}")


def to_struct(limits: Limits) -> CData:
    """Converts limits to a new `penstock_limits`."""
    out = ffi.new("penstock_limits *")
    out.mode = _MODES[limits.mode]
    out.flags = (
        (lib.PENSTOCK_TENANT_SUSPENDED if limits.suspended else 0)
        | (lib.PENSTOCK_TENANT_ALLOW_UNKNOWN if limits.allow_unknown else 0)
        | (lib.PENSTOCK_TENANT_RECORD if limits.record else 0)
        | (lib.PENSTOCK_TENANT_RELEASED if limits.released else 0)
    )
    out.released_ns = limits.released_ns
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
    """Converts a `penstock_limits` to limits. Raises ValueError if a field is out of bounds."""
    if struct.device_count > MAX_DEVICES:
        raise ValueError(f"a tenant has 1 to {MAX_DEVICES} devices, not {struct.device_count}")
    modes = {number: name for name, number in _MODES.items()}
    if struct.mode not in modes:
        raise ValueError(f"unknown mode {struct.mode}")
    return Limits(
        devices=tuple(_device_from_struct(struct.devices[i]) for i in range(struct.device_count)),
        mode=modes[struct.mode],
        suspended=bool(struct.flags & lib.PENSTOCK_TENANT_SUSPENDED),
        allow_unknown=bool(struct.flags & lib.PENSTOCK_TENANT_ALLOW_UNKNOWN),
        record=bool(struct.flags & lib.PENSTOCK_TENANT_RECORD),
        released=bool(struct.flags & lib.PENSTOCK_TENANT_RELEASED),
        released_ns=struct.released_ns,
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
        # With None, the allowance follows a later change of the share.
        allowance_permille=(
            None if struct.allowance_permille == cores else struct.allowance_permille
        ),
        sharers=struct.sharers,
        busy_sharers=struct.busy_sharers,
    )
