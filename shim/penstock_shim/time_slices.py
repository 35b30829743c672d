"""Time-slice scheduler: one native thread per device gives time slices to contending tenants.

During its time slice a tenant has the device to itself, so that each tenant gets its share no
matter how long the other tenants' kernels run. While fewer than two tenants have work, there are no
time slices, and each tenant's own gate enforces its share. The process that owns a machine's
devices has one `TimeSlices`. If that process is killed, tenants continue without time slices after
a fifth of a second.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_shim._native import ffi, lib
from penstock_shim._page_file import PageError, open_page
from penstock_shim._quota_page import read_quota

if TYPE_CHECKING:
    from typing_extensions import Self

    from penstock_shim._native import CData


@dataclass(frozen=True)
class SliceFigures:
    """Counters of the time slices given so far, on one device or to one tenant."""

    slices: int
    overruns: int
    """Number of time slices whose work ran more than 0.2 ms past their end."""
    overrun_ns: int
    held_ns: int
    """Total length of all time slices, including overruns."""
    used_ns: int
    """Device time that the tenants' shims charged since they were added."""


@dataclass(frozen=True)
class DeviceSlices(SliceFigures):
    """Counters of the time slices on one device, and of the device's thread."""

    tenants: int
    handed_out: bool
    """Whether time slices are given at the moment, because two or more tenants have work."""
    steps: int
    """Number of scheduling steps that the thread has made."""
    thread_cpu_ns: int
    """Processor time of the thread."""


class TimeSlices:
    """Time-slice scheduler for any number of devices. Use as a context manager, or call `stop`.

    Any thread may call the methods. Shares, modes and suspensions are read from the tenants' quota
    pages, where changes take effect without a call.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._devices: dict[str, CData] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._next = 1
        self._stopped = False

    def add(self, tenant: str, directory: Path) -> tuple[str, ...]:
        """Adds a tenant on every device of its quota page.

        From then on, while another tenant of the device has work, the tenant launches only in its
        own time slices. An existing tenant of this name is replaced, for instance after its pages
        were replaced.

        Args:
            tenant: Name of the tenant, unique within this object.
            directory: Directory of the tenant's two pages.

        Returns:
            The UUIDs of the devices.

        Raises:
            PageError: a page cannot be used.
            OSError: the process is out of memory, descriptors or threads.
            ValueError: `stop` was called.
        """
        if self._stopped:
            raise ValueError("the time-slice scheduler was stopped")
        quota_path, usage_path = directory / "quota", directory / "usage"
        devices = tuple(device.uuid.lower() for device in read_quota(quota_path).limits.devices)
        quota_fd = open_page(quota_path, "quota", writable=True)
        try:
            usage_fd = open_page(usage_path, "usage", writable=False)
            try:
                with self._mutex:
                    if self._stopped:
                        raise ValueError("the time-slice scheduler was stopped")
                    self._drop(tenant)
                    for index, device in enumerate(devices):
                        self._enter(tenant, device, index, quota_fd, usage_fd)
            finally:
                os.close(usage_fd)
        finally:
            os.close(quota_fd)
        return devices

    def _enter(self, tenant: str, device: str, index: int, quota_fd: int, usage_fd: int) -> None:
        scheduler = self._devices.get(device)
        if scheduler is None:
            scheduler = lib.penstock_scheduler_start()
            if scheduler == ffi.NULL:
                raise OSError(
                    ffi.errno, f"cannot start the time-slice scheduler: {os.strerror(ffi.errno)}"
                )
            self._devices[device] = scheduler
        number, self._next = self._next, self._next + 1
        error = -lib.penstock_scheduler_add(scheduler, number, quota_fd, usage_fd, index)
        if error == errno.EINVAL:
            self._drop(tenant)
            raise PageError(Path(tenant), "has pages that changed while they were opened")
        if error:
            self._drop(tenant)
            raise OSError(error, f"cannot give time slices to {tenant}: {os.strerror(error)}")
        self._numbers[device, tenant] = number

    def remove(self, tenant: str) -> bool:
        """Removes a tenant, which continues without time slices. Returns False if unknown."""
        with self._mutex:
            return self._drop(tenant)

    def _drop(self, tenant: str) -> bool:
        keys = [key for key in self._numbers if key[1] == tenant]
        for key in keys:
            lib.penstock_scheduler_remove(self._devices[key[0]], self._numbers.pop(key))
        for device in {key[0] for key in keys} - {device for device, _ in self._numbers}:
            lib.penstock_scheduler_stop(self._devices.pop(device))
        return bool(keys)

    def tenants(self) -> frozenset[str]:
        """Returns the names of the tenants that were added."""
        with self._mutex:
            return frozenset(tenant for _, tenant in self._numbers)

    def devices(self) -> dict[str, DeviceSlices]:
        """Returns the counters of every device with tenants, by UUID in lower case."""
        out = {}
        with self._mutex:
            for device, scheduler in self._devices.items():
                figures = ffi.new("penstock_scheduler_figures *")
                lib.penstock_scheduler_count(scheduler, figures)
                out[device] = DeviceSlices(
                    *_common(figures),
                    tenants=figures.tenants,
                    handed_out=bool(figures.handed_out),
                    steps=figures.steps,
                    thread_cpu_ns=figures.thread_ns,
                )
        return out

    def shares(self) -> dict[tuple[str, str], SliceFigures]:
        """Returns the counters of every tenant on every device, by lower-case UUID and tenant."""
        out = {}
        with self._mutex:
            for key, number in self._numbers.items():
                figures = ffi.new("penstock_scheduler_figures *")
                if lib.penstock_scheduler_count_of(self._devices[key[0]], number, figures) == 0:
                    out[key] = SliceFigures(*_common(figures))
        return out

    def stop(self) -> None:
        """Ends all threads. Tenants continue without time slices. May be called twice."""
        with self._mutex:
            self._stopped = True
            self._numbers.clear()
            while self._devices:
                lib.penstock_scheduler_stop(self._devices.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _common(figures: CData) -> tuple[int, int, int, int, int]:
    return (
        figures.slices, figures.overruns, figures.overrun_ns, figures.held_ns, figures.used_ns,
    )  # fmt: skip
