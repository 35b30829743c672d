"""Headroom: how many more replicas fit on the devices now, according to the rules of admission."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.devices import find_devices
from penstock.model import PenstockError, cores_from_tflops
from penstock.node.admission.checks import check_admission, check_size, free_share, roomiest
from penstock.node.tenants.tenant import live_grants, tenants_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.devices import Device, DeviceBackend
    from penstock.node.admission.admit import Request
    from penstock.node.admission.checks import Free
    from penstock.node.tenants.state import State


def room_for(state: State, request: Request, source: DeviceBackend, most: int) -> tuple[int, str]:
    """How many more replicas fit, at most `most`, and why no more fit ("" if all do)."""
    machine = str(source.machine) if source.machine else None
    grants = live_grants(tenants_of(state))
    devices = source.devices()
    return room_in(
        devices,
        {device.uuid: free_share(device, machine, grants) for device in devices},
        request,
        most,
    )


def room_in(
    devices: Sequence[Device], free: Mapping[str, Free], request: Request, most: int
) -> tuple[int, str]:
    """Like `room_for`, from the free share of each of `devices`, by UUID."""
    free = dict(free)
    for count in range(most):
        try:
            if request.devices:
                chosen = find_devices(devices, request.devices)
            else:
                chosen = roomiest(devices, free, request.count)
            for index, device in enumerate(chosen):
                memory_bytes = _figure(request.memory_bytes, index) or 0
                permille = _figure(request.cores_permille, index) or _cores(device, request)
                left = free[device.uuid]
                check_size(device, memory_bytes)
                if not request.oversubscribe:
                    check_admission(device, left, memory_bytes, permille)
                free[device.uuid] = replace(
                    left,
                    memory_bytes=left.memory_bytes - memory_bytes,
                    cores_permille=left.cores_permille - permille,
                )
        except PenstockError as error:  # noqa: PERF203 - the loop ends with the first failure
            return count, error.what
        except ValueError as error:  # more TFLOPS than the device's rating
            return count, str(error)
    return most, ""


def _figure(figures: object, index: int) -> int | None:
    """The value for one device; a single value applies to all devices."""
    if not isinstance(figures, (list, tuple)) or not figures:
        return None
    return int(figures[index if len(figures) > 1 else 0])


def _cores(device: Device, request: Request) -> int:
    if request.tflops is None or device.tflops is None:
        raise PenstockError(f"the cores of a share of {device} are not known")
    return cores_from_tflops(request.tflops, device.tflops)
