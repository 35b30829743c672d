"""Resize of a running tenant's quota, with the same admission checks as for a new tenant."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.devices import Device, find_device
from penstock.model import PenstockError
from penstock.node.admission.checks import check_admission, check_size, free_share
from penstock.node.admission.scheduled_cap import accounted_label, check_accounted
from penstock.node.tenants.tenant import change_grant, collect, find_tenant, live_grants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.model.terms import Mode
    from penstock.node.tenants.grant import DeviceGrant, Grant
    from penstock.node.tenants.state import State


@dataclass(frozen=True)
class Resize:
    """A change of quota, for one device or all; a quantity of None stays as it is."""

    memory_bytes: int | None = None
    cores_permille: int | None = None
    mode: Mode | None = None
    device: str | None = None
    oversubscribe: bool = False
    accounted: bool = False
    """Whether an external scheduler accounts for these quantities from now on."""
    force: bool = False
    """Whether the quota may be less than what is in use; enforcement then ends the program."""

    def check(self) -> None:
        """Raises `PenstockError` if nothing would change or the accounted share is incomplete."""
        if self.accounted and (self.memory_bytes is None or self.cores_permille is None):
            raise PenstockError(
                "the accounted share is incomplete", "memory or cores are missing", "set both",
            )  # fmt: skip
        if self.memory_bytes is None and self.cores_permille is None and self.mode is None:
            raise PenstockError(
                "nothing to change", "no limit is given", "add --memory, --cores or --mode"
            )


def resize(state: State, name: str, change: Resize) -> list[str]:
    """Changes the quota in force; returns notes. Raises `PenstockError` if it is not admitted."""
    change.check()
    with state.lock():
        living = collect(state)
        tenant = find_tenant(state, name)
        others = [other for other in living if other.name != name]
        after, notes = resized(tenant.grant(), change, lambda: live_grants(others))
        return notes + change_grant(tenant, after)


def resized(
    grant: Grant, change: Resize, others: Callable[[], Iterable[Grant]]
) -> tuple[Grant, list[str]]:
    """The grant after the change, and notes for the user.

    `others`: returns the other grants in force. It is called only if a share grows.

    Raises:
        PenstockError: the new share does not fit beside `others`, exceeds the accounted share, or
            is invalid.
    """
    notes = []
    chosen = _chosen(grant, change.device)
    shares = []
    labels = dict(grant.labels)
    for share in grant.devices:
        if share.uuid not in chosen:
            shares.append(share)
            continue
        new = _resized(share, change)
        device = _as_device(share, grant)
        check_size(device, new.memory_bytes)
        if change.accounted:  # kept in the grant, so that label and quantities always agree
            labels |= [accounted_label(new.uuid, new.memory_bytes, new.cores_permille)]
        check_accounted(grant.tenant, labels, new)
        if change.oversubscribe:
            notes.append(f"{device} may be granted more than once: quotas on it are not guaranteed")
        elif _grows(share, new):
            free = free_share(device, grant.machine, others())
            check_admission(device, free, new.memory_bytes, new.cores_permille)
        shares.append(new)
    after = dataclasses.replace(
        grant,
        devices=tuple(shares),
        mode=change.mode or grant.mode,
        labels=labels,
        oversubscribed=grant.oversubscribed or change.oversubscribe,
    )
    return after, notes


def grows(before: Grant, after: Grant) -> bool:
    """Whether the change increases the share of any device."""
    pairs = zip(before.devices, after.devices, strict=True)
    return any(_grows(share, new) for share, new in pairs)


def _chosen(grant: Grant, word: str | None) -> set[str]:
    if word is None:
        return {share.uuid for share in grant.devices}
    return {find_device([_as_device(share, grant) for share in grant.devices], word).uuid}


def _resized(share: DeviceGrant, change: Resize) -> DeviceGrant:
    return dataclasses.replace(
        share,
        memory_bytes=share.memory_bytes if change.memory_bytes is None else change.memory_bytes,
        cores_permille=share.cores_permille
        if change.cores_permille is None
        else change.cores_permille,
    )


def _grows(before: DeviceGrant, after: DeviceGrant) -> bool:
    """Whether the share grows. A smaller share is always admitted, even if oversubscribed."""
    return after.memory_bytes > before.memory_bytes or after.cores_permille > before.cores_permille


def _as_device(share: DeviceGrant, grant: Grant) -> Device:
    """The device as recorded in the grant, without a query to the driver."""
    return Device(
        index=share.index,
        uuid=share.uuid,
        name=share.name,
        memory_bytes=share.device_memory_bytes,
        context_bytes=share.context_bytes,
        tflops=None,
        simulated=grant.machine is not None,
    )
