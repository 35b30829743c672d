"""Devices on which a released tenant goes on: the same ones, or others that are equal to them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from penstock.devices import find_devices
from penstock.model import PenstockError, human_memory
from penstock.node.admission.checks import check_admission, free_shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.devices import Device
    from penstock.node.admission.checks import Free
    from penstock.node.agent.device_task import DeviceTask
    from penstock.node.agent.node import Node
    from penstock.node.tenants.grant import DeviceGrant, Grant


def placed(
    grant: Grant, words: Sequence[str], node: Node, devices: DeviceTask, spent_ns: Sequence[int]
) -> Grant:
    """The grant on the devices that `words` name, in the order of its own.

    `spent_ns`: device time charged so far at each index of the grant.

    Raises:
        PenstockError: a device does not exist, or is not equal to the one that it replaces.
    """
    chosen = find_devices(node.devices, words)
    if len(chosen) != len(grant.devices):
        raise PenstockError(
            f"{len(chosen)} devices were named for tenant {grant.tenant!r}",
            f"it has {len(grant.devices)}",
            "name one device for each of its own, or none to resume it where it was",
        )
    if [one.uuid for one in chosen] == [share.uuid for share in grant.devices]:
        return grant
    if grant.moved:
        raise PenstockError(
            f"tenant {grant.tenant!r} cannot be resumed there",
            "an earlier resume moved some of its processes, and was refused for others",
            "resume it without --device, where these processes are", reason="not-now",
        )  # fmt: skip
    for share, device in zip(grant.devices, chosen, strict=True):
        _check_equal(grant, share, device, devices)
    return moved(grant, chosen, spent_ns)


def _check_equal(grant: Grant, share: DeviceGrant, device: Device, devices: DeviceTask) -> None:
    what = f"tenant {grant.tenant!r} cannot be resumed on {device}"
    if (device.name, device.memory_bytes) != (share.name, share.device_memory_bytes):
        raise PenstockError(
            what,
            f"it was on {share.name} with {human_memory(share.device_memory_bytes)}, and the "
            "driver restores memory only on an equal device",
            f"name a {share.name}",
        )
    report = devices.report_of(device.uuid)
    if report is not None and report.attributes.get("checkpoint") == "in place":
        raise PenstockError(
            what,
            "this driver restores memory only where it was",
            "resume it without --device, or install driver 580 or later", reason="not-allowed",
        )  # fmt: skip


def moved(grant: Grant, chosen: Sequence[Device], spent_ns: Sequence[int]) -> Grant:
    """The grant on other devices; what it was charged stays with the devices that it leaves."""
    before = grant.moved_at_ns or (0,) * len(grant.devices)
    charged = dict(grant.charged_ns)
    for share, spent, moved_at in zip(grant.devices, spent_ns, before, strict=True):
        charged[share.uuid] = charged.get(share.uuid, 0) + spent - moved_at
    return dataclasses.replace(
        grant,
        devices=tuple(
            dataclasses.replace(
                share,
                uuid=device.uuid,
                index=device.index,
                name=device.name,
                context_bytes=device.context_bytes,
            )
            for share, device in zip(grant.devices, chosen, strict=True)
        ),
        former_devices=tuple(share.uuid for share in grant.devices),
        charged_ns=charged,
        moved_at_ns=tuple(spent_ns),
    )


def check_room(grant: Grant, node: Node, grants: Iterable[Grant]) -> None:
    """Raises `PenstockError` if the shares of a released tenant are not free."""
    if grant.oversubscribed:
        return
    others = [one for one in grants if one.tenant != grant.tenant]
    free = free_shares(node.devices, node.machine, others)
    known = {device.uuid: device for device in node.devices}
    for share in grant.devices:
        device = known.get(share.uuid)
        if device is None:
            raise PenstockError(
                f"tenant {grant.tenant!r} stays suspended",
                f"this node no longer has its device {share.name} ({share.uuid})",
                "name an equal device with --device, or end the tenant", reason="not-enough-left",
            )  # fmt: skip
        _check_share(grant, device, free[share.uuid], share)


def _check_share(grant: Grant, device: Device, free: Free, share: DeviceGrant) -> None:
    try:
        check_admission(device, free, share.memory_bytes, share.cores_permille)
    except PenstockError as error:
        raise PenstockError(
            f"tenant {grant.tenant!r} stays suspended: {error.what}", error.why,
            "wait for a tenant to end, suspend one with --release-memory, or name an equal device "
            "with --device",
            reason="not-enough-left",
        ) from error  # fmt: skip


def mapping_of(node_uuids: Iterable[str], old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """Where each device's memory goes, for the driver, which wants all devices of the node."""
    mapping = dict(zip(old, new, strict=True))
    rest = [uuid for uuid in node_uuids if uuid not in mapping]
    targets = [uuid for uuid in (*rest, *old) if uuid not in mapping.values()]
    stay = {uuid for uuid in rest if uuid in targets}
    others = iter(uuid for uuid in targets if uuid not in stay)
    return mapping | {uuid: uuid if uuid in stay else next(others) for uuid in rest}
