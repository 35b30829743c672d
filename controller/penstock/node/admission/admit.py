"""Admission of a request: chooses devices, checks the shares, and creates the grant."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from penstock.devices import Device, DeviceBackend, find_devices
from penstock.model import (
    PenstockError,
    QuantityError,
    check_tenant_name,
    cores_from_tflops,
    format_cores,
    human_memory,
)
from penstock.model.names import name_from_command, printable
from penstock.model.terms import Terms
from penstock.node.admission.checks import (
    Free,
    check_admission,
    check_cores,
    check_grace,
    check_size,
    free_shares,
    roomiest,
)
from penstock.node.tenants.grant import DeviceGrant, Grant, Lifetime
from penstock.node.tenants.pool_record import check_not_pools, not_pools, pool_devices
from penstock.node.tenants.tenant import Tenant, collect, create_tenant, live_grants, tenants_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.node.tenants.state import State

_Figure = TypeVar("_Figure", int, "int | None")


@dataclass(frozen=True)
class Request(Terms):
    """A request for shares of devices. An unset quantity means all that is free.

    Memory and cores have one value for all devices, or one value for each of `devices`. At most one
    of `cores_permille` and `tflops` is set.
    """

    command: Sequence[str]
    memory_bytes: Sequence[int] | None
    cores_permille: Sequence[int] | None
    tflops: float | None = None
    devices: Sequence[str] = ()  # indexes or UUIDs; the devices with the most free if empty
    count: int = 1
    name: str | None = None
    oversubscribe: bool = False
    record: bool = False
    # The following fields are only set in requests to an agent.
    candidates: Sequence[str] = ()  # devices to choose from if `devices` is empty; all if empty
    user: str | None = None  # the tenant's user; None for the user of this process
    uid: int | None = None
    owner_uid: int | None = None
    lifetime: Lifetime = "command"
    labels: Mapping[str, str] = field(default_factory=dict)
    container: bool = False  # the tenant is for containers only
    request_id: str = ""
    # The value was written by a user to whom the node's limits for users apply.
    bound_measured: bool = False
    bound_grace: bool = False


@dataclass
class Admitted:
    """An admitted tenant that may be started, with notes for its user."""

    tenant: Tenant
    grant: Grant
    lock: int
    notes: list[str] = field(default_factory=list)


def admit(state: State, request: Request, source: DeviceBackend) -> Admitted:
    """Checks the request and creates the tenant. Raises `PenstockError`, leaving nothing behind."""
    with state.lock():
        living = collect(state)
        grant, notes = plan(
            request,
            source.devices(),
            live_grants(living),
            machine=str(source.machine) if source.machine else None,
            candidates=_candidates(source),
            names=[tenant.name for tenant in tenants_of(state)],
            owned=pool_devices(state),
        )
        tenant, lock = create_tenant(state, grant, source.libraries())
    return Admitted(tenant, grant, lock, notes)


def plan(
    request: Request,
    devices: Sequence[Device],
    grants: Iterable[Grant],
    *,
    machine: str | None,
    candidates: Sequence[Device],
    names: Sequence[str],
    most: Mapping[str, Free] | None = None,
    owned: Collection[str] = (),
) -> tuple[Grant, list[str]]:
    """The grant for a request beside the existing `grants`, and notes. Changes nothing.

    Args:
        request: The request.
        devices: All devices of the node.
        grants: The grants in force.
        machine: The simulated machine's file; None for real devices.
        candidates: Devices to choose from if the request names none.
        names: Names of the live tenants.
        most: The requester's limit for each device, by UUID; None for all that is free.
        owned: UUIDs of the devices that belong to a compute pool, unless the pool is the requester.

    Raises:
        PenstockError: the request does not fit, or is invalid.
    """
    notes: list[str] = []
    check_grace(request.grace_ns)
    chosen = find_devices(devices, request.devices)
    check_not_pools(chosen, owned)
    if not request.devices:
        chosen = not_pools(candidates, owned)
    free = free_shares(chosen, machine, grants)
    room = {uuid: _within(left, most[uuid]) for uuid, left in free.items()} if most else free
    if not request.devices:
        chosen = roomiest(_with_room(chosen, room, request), room, request.count)
    shares = []
    memory = _for_each("--memory", request.memory_bytes or [None], chosen, request)
    cores = _for_each("--cores", request.cores_permille or [None], chosen, request)
    for device, wanted_bytes, permille in zip(chosen, memory, cores, strict=True):
        left = free[device.uuid]
        memory_bytes = room[device.uuid].memory_bytes if wanted_bytes is None else wanted_bytes
        if permille is None and request.tflops is not None:
            permille = _cores_of_tflops(device, request.tflops, notes)  # noqa: PLW2901
        if permille is None:  # if none is free, the admission check refuses and names the holders
            permille = max(1, room[device.uuid].cores_permille)  # noqa: PLW2901
        share = _share(device, memory_bytes, permille, notes)
        if request.oversubscribe:
            notes.append(f"{device} may be granted more than once: quotas on it are not guaranteed")
        else:
            check_admission(device, left, share.memory_bytes, share.cores_permille)
        shares.append(share)
    name = request.name
    if name is None:
        name = name_from_command(request.command, names)
    grant = Grant(
        tenant=check_tenant_name(name),
        devices=tuple(shares),
        command=tuple(map(printable, request.command)),
        user=request.user or user_name(),
        uid=request.uid,
        owner_uid=request.owner_uid,
        created=datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        machine=machine,
        oversubscribed=request.oversubscribe,
        record=request.record,
        lifetime=request.lifetime,
        labels=dict(request.labels),
        request_id=request.request_id,
        **request.terms(),
    )
    return grant, notes


def _within(left: Free, most: Free) -> Free:
    return Free(
        min(left.memory_bytes, most.memory_bytes),
        min(left.cores_permille, most.cores_permille),
        left.holders,
    )


def _with_room(
    devices: Sequence[Device], room: Mapping[str, Free], request: Request
) -> Sequence[Device]:
    """The devices with enough free; all devices if too few have, so that the check refuses."""
    memory_bytes = max(request.memory_bytes or [0])
    cores_permille = max(request.cores_permille or [1])
    fitting = [
        device
        for device in devices
        if room[device.uuid].memory_bytes >= memory_bytes
        and room[device.uuid].cores_permille >= cores_permille
    ]
    return fitting if len(fitting) >= request.count else devices


def _candidates(source: DeviceBackend) -> list[Device]:
    """The devices in $CUDA_VISIBLE_DEVICES; all devices if unset or if the machine is simulated."""
    devices = source.devices()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if not visible or source.machine is not None:
        return devices
    try:
        return find_devices(devices, [visible])
    except PenstockError as error:
        raise PenstockError(
            f"$CUDA_VISIBLE_DEVICES is {visible!r}",
            str(error),
            "unset it, or name a device with --device",
        ) from error


def _for_each(
    option: str, figures: Sequence[_Figure], chosen: Sequence[Device], request: Request
) -> Sequence[_Figure]:
    """One value for each chosen device."""
    if len(figures) == 1:
        return list(figures) * len(chosen)
    if len(figures) != len(request.devices and chosen):
        which = f"{len(chosen)} devices" if request.devices else "devices that are not named"
        raise PenstockError(
            f"{option} has {len(figures)} values for {which}",
            "it takes one value for all devices, or one per device in the order of --device",
            "name as many devices as values, for example --device 0,1 --memory 8Gi,4Gi",
        )
    return figures


def _share(device: Device, memory_bytes: int, cores: int, notes: list[str]) -> DeviceGrant:
    check_size(device, memory_bytes)
    check_cores(cores)
    if memory_bytes <= device.context_bytes:
        notes.append(
            f"{human_memory(memory_bytes)} is no more than the context of one process takes "
            f"on this device ({human_memory(device.context_bytes)}), so no CUDA program can start"
        )
    return DeviceGrant(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory_bytes=memory_bytes,
        cores_permille=cores,
        device_memory_bytes=device.memory_bytes,
        context_bytes=device.context_bytes,
    )


def _cores_of_tflops(device: Device, tflops: float, notes: list[str]) -> int:
    if device.tflops is None:
        raise PenstockError(
            f"tflops: {tflops:g} cannot be granted", f"the rated TFLOPS of {device} are unknown",
            "request cores instead",
        )  # fmt: skip
    try:
        cores = cores_from_tflops(tflops, device.tflops)
    except QuantityError as error:
        raise PenstockError(
            f"tflops: {tflops:g} cannot be granted", f"{error}; {device} has {device.tflops:g}",
            "request no more than one device has, or request cores",
        ) from error  # fmt: skip
    notes.append(
        f"tflops: {tflops:g} of {device.tflops:g} on {device} is {format_cores(cores)} cores "
        "(rounded up to a whole percent)"
    )
    return cores


def user_name() -> str:
    """The name of this process's user, or the uid if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, as in containers
        return str(os.getuid())
