"""Time-slice scheduler: one native thread per device gives time slices to contending tenants.

In its time slice ("turn") a tenant has the device for itself, so each gets its share whatever the
others' kernels are like. While fewer than two tenants have work there are no time slices, and each
tenant's own gate keeps its share. The owner of a machine's devices holds one `Turns`; if it is
killed, tenants continue without time slices a fifth of a second later.
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
    from types import TracebackType

    from typing_extensions import Self

    from penstock_shim._native import CData


@dataclass(frozen=True)
class TurnFigures:
    """Time slices given so far, on one device or to one tenant."""

    turns: int
    overruns: int
    """Time slices whose work ran on for more than 0.2 ms past their end."""
    overrun_ns: int
    held_ns: int
    """The length of all time slices, overruns included."""
    used_ns: int
    """Device time that the tenants' shims charged since they were added."""


@dataclass(frozen=True)
class DeviceTurns(TurnFigures):
    """Time slices of one device, and counters of its thread."""

    tenants: int
    handed_out: bool
    """Whether time slices are given at this moment: two tenants or more have work."""
    steps: int
    """Number of scheduling steps of the thread."""
    thread_cpu_ns: int
    """Processor time of the thread."""


class Turns:
    """Gives time slices on any number of devices. Use as a context manager, or call `stop`.

    May be called from any thread. Shares, modes and suspensions are read from the tenants' quota
    pages; changes there take effect without a call.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._devices: dict[str, CData] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._next = 1
        self._stopped = False

    def add(self, tenant: str, directory: Path) -> tuple[str, ...]:
        """Adds a tenant on every device of its quota page.

        From then on, while another tenant of such a device has work, the tenant launches only in
        its time slices. An existing tenant is replaced, for instance after its pages were.

        Args:
            tenant: Its name among the tenants of this object.
            directory: Directory of its two pages.

        Returns:
            The UUIDs of the devices.

        Raises:
            PageError: a page cannot be used.
            OSError: no memory, descriptors or threads.
            ValueError: `stop` was called.
        """
        if self._stopped:
            raise ValueError("these turns were stopped")
        quota_path, usage_path = directory / "quota", directory / "usage"
        devices = tuple(device.uuid.lower() for device in read_quota(quota_path).limits.devices)
        quota_fd = open_page(quota_path, "quota", writable=True)
        try:
            usage_fd = open_page(usage_path, "usage", writable=False)
            try:
                with self._mutex:
                    if self._stopped:
                        raise ValueError("these turns were stopped")
                    self._drop(tenant)
                    for index, device in enumerate(devices):
                        self._enter(tenant, device, index, quota_fd, usage_fd)
            finally:
                os.close(usage_fd)
        finally:
            os.close(quota_fd)
        return devices

    def _enter(self, tenant: str, device: str, index: int, quota_fd: int, usage_fd: int) -> None:
        giver = self._devices.get(device)
        if giver is None:
            giver = lib.penstock_turns_start()
            if giver == ffi.NULL:
                raise OSError(ffi.errno, f"no thread for turns: {os.strerror(ffi.errno)}")
            self._devices[device] = giver
        number, self._next = self._next, self._next + 1
        error = -lib.penstock_turns_add(giver, number, quota_fd, usage_fd, index)
        if error == errno.EINVAL:
            self._drop(tenant)
            raise PageError(Path(tenant), "has pages that changed while they were opened")
        if error:
            self._drop(tenant)
            raise OSError(error, f"no turns for {tenant}: {os.strerror(error)}")
        self._numbers[device, tenant] = number

    def remove(self, tenant: str) -> bool:
        """Removes a tenant, which continues without time slices. False if it was not there."""
        with self._mutex:
            return self._drop(tenant)

    def _drop(self, tenant: str) -> bool:
        keys = [key for key in self._numbers if key[1] == tenant]
        for key in keys:
            lib.penstock_turns_remove(self._devices[key[0]], self._numbers.pop(key))
        for device in {key[0] for key in keys} - {device for device, _ in self._numbers}:
            lib.penstock_turns_stop(self._devices.pop(device))
        return bool(keys)

    def tenants(self) -> frozenset[str]:
        """The tenants that were added."""
        with self._mutex:
            return frozenset(tenant for _, tenant in self._numbers)

    def devices(self) -> dict[str, DeviceTurns]:
        """Counters of every device with tenants, by UUID in lower case, for metrics."""
        out = {}
        with self._mutex:
            for device, giver in self._devices.items():
                figures = ffi.new("penstock_turns_figures *")
                lib.penstock_turns_count(giver, figures)
                out[device] = DeviceTurns(
                    *_common(figures),
                    tenants=figures.tenants,
                    handed_out=bool(figures.handed_out),
                    steps=figures.steps,
                    thread_cpu_ns=figures.thread_ns,
                )
        return out

    def shares(self) -> dict[tuple[str, str], TurnFigures]:
        """Counters of every tenant on every device, by UUID in lower case and tenant."""
        out = {}
        with self._mutex:
            for key, number in self._numbers.items():
                figures = ffi.new("penstock_turns_figures *")
                if lib.penstock_turns_count_of(self._devices[key[0]], number, figures) == 0:
                    out[key] = TurnFigures(*_common(figures))
        return out

    def stop(self) -> None:
        """Ends all threads; tenants continue without time slices. May be called twice."""
        with self._mutex:
            self._stopped = True
            self._numbers.clear()
            while self._devices:
                lib.penstock_turns_stop(self._devices.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _common(figures: CData) -> tuple[int, int, int, int, int]:
    return (
        figures.turns, figures.overruns, figures.overrun_ns, figures.held_ns, figures.used_ns,
    )  # fmt: skip
