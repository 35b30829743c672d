"""Admission checks: the grants on a device never add up to more than the device has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError, format_cores, format_duration, human_memory, listing
from penstock.model.quantity import FULL_DEVICE_PERMILLE, LEAST_MEMORY_BYTES, MOST_GRACE_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.devices import Device
    from penstock.node.tenants.grant import Grant


@dataclass(frozen=True)
class Held:
    """The share of a device that one live tenant holds."""

    tenant: str
    memory_bytes: int
    cores_permille: int

    def __str__(self) -> str:
        cores = format_cores(self.cores_permille)
        return f"{self.tenant} holds {human_memory(self.memory_bytes)} and {cores} cores"


@dataclass(frozen=True)
class Free:
    """The free memory and cores of a device, and the holders of the rest."""

    memory_bytes: int
    cores_permille: int
    holders: tuple[Held, ...]


def free_share(device: Device, machine: str | None, grants: Iterable[Grant]) -> Free:
    """The share that `grants` leave free; a UUID identifies a device only within its machine."""
    return free_shares([device], machine, grants)[device.uuid]


def free_shares(
    devices: Iterable[Device], machine: str | None, grants: Iterable[Grant]
) -> dict[str, Free]:
    """The share that `grants` leave free on each of `devices`, by UUID."""
    devices = list(devices)
    holders: dict[str, list[Held]] = {device.uuid: [] for device in devices}
    for grant in grants:
        if grant.machine != machine or not grant.holds_devices:
            continue
        for share in grant.devices:
            if share.uuid in holders:
                held = Held(grant.tenant, share.memory_bytes, share.cores_permille)
                holders[share.uuid].append(held)
    return {
        device.uuid: Free(
            max(0, device.memory_bytes - sum(held.memory_bytes for held in holders[device.uuid])),
            max(
                0,
                FULL_DEVICE_PERMILLE - sum(held.cores_permille for held in holders[device.uuid]),
            ),
            tuple(holders[device.uuid]),
        )
        for device in devices
    }


def check_grace(grace_ns: int) -> None:
    """Raises `PenstockError` if the grace before an enforcement step is not 0 to 24 h."""
    if not 0 <= grace_ns <= MOST_GRACE_NS:
        raise PenstockError(
            f"invalid grace: {grace_ns / 10**9:g}s",
            f"the time before the next step may be 0s to {format_duration(MOST_GRACE_NS)}",
            "give a time in that range, for example 10s",
        )


def check_cores(cores_permille: int) -> None:
    """Raises `PenstockError` if `cores_permille` is not a valid share of a device."""
    if not 1 <= cores_permille <= FULL_DEVICE_PERMILLE:
        raise PenstockError(
            f"invalid cores: {cores_permille} thousandths of a device",
            f"a share is 1 to {FULL_DEVICE_PERMILLE} thousandths", "request a share in that range",
        )  # fmt: skip


def check_size(device: Device, memory_bytes: int) -> None:
    """Checks a memory share against the device's size, even if the device is oversubscribed.

    Raises:
        PenstockError: `memory_bytes` is less than one unit, or more than the device has.
    """
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise PenstockError(
            f"memory {memory_bytes} is too little",
            f"memory is counted in units of {LEAST_MEMORY_BYTES} bytes",
            f"a number without a unit is bytes: did you mean {memory_bytes}Gi?",
        )
    if memory_bytes > device.memory_bytes:
        raise PenstockError(
            f"memory {human_memory(memory_bytes)} is more than the device has",
            f"{device} has {device.memory_bytes} bytes",
            f"request at most {human_memory(device.memory_bytes, down=True)}",
        )


def check_admission(device: Device, free: Free, memory_bytes: int, cores_permille: int) -> None:
    """Raises `PenstockError`, naming the holders, if the share is larger than what is free."""
    lacking = []
    if memory_bytes > free.memory_bytes:
        left = human_memory(free.memory_bytes, down=True)
        lacking.append(f"{human_memory(memory_bytes)} memory ({left} free)")
    if cores_permille > free.cores_permille:
        lacking.append(
            f"{format_cores(cores_permille)} cores ({format_cores(free.cores_permille)} free)"
        )
    if lacking:
        raise PenstockError(
            f"{device}: not enough left for {' and '.join(lacking)}",
            listing([str(held) for held in _most_first(free.holders)]),
            "request less, wait for a tenant to end, or oversubscribe with --oversubscribe",
            reason="not-enough-left",
        )


def _most_first(holders: Sequence[Held]) -> list[Held]:
    return sorted(holders, key=lambda held: (-held.cores_permille, -held.memory_bytes))


def roomiest(devices: Sequence[Device], free: dict[str, Free], count: int) -> list[Device]:
    """The `count` devices with the most cores free, then the most memory, then the lowest index."""
    if count > len(devices):
        raise PenstockError(
            f"{count} devices were requested",
            f"this machine has {len(devices)}",
            "request fewer devices",
        )
    order = sorted(
        devices, key=lambda d: (-free[d.uuid].cores_permille, -free[d.uuid].memory_bytes, d.index)
    )
    return order[:count]
