"""Demands: what each tenant is forecast to need of a device in the next window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from penstock.model import PenstockError, listing

if TYPE_CHECKING:
    from collections.abc import Iterable

NS_PER_S = 10**9

# Tells a plan's demands apart: the device that one is bound to, or "", and the tenant.
DemandKey: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a tenant is forecast to need.

    It runs on one device at a time. A tenant that uses several devices at once has a demand for
    each, bound to it by `device`; empty: the demand may run on any, and change between slices.

    `workload_device_s`: forecast workload, by which the heap orders. `duration_ns`: T_i, the device
    time that the workload takes. `arrival_ns`: when it was submitted, from the window's start;
    negative: before. `priority`: larger is more urgent. `given_ns`: device time that it was given
    before the window. `isolated_ns`: how long it takes from its submission to its end under a share
    of its own; 0: not known. Then it is the time that it takes alone on a device.
    """

    tenant: str
    workload_device_s: float
    duration_ns: int
    arrival_ns: int = 0
    priority: int = 0
    given_ns: int = 0
    isolated_ns: int = 0
    device: str = ""

    def __post_init__(self) -> None:
        if not self.tenant:
            raise PenstockError("a demand has no tenant", fix="name the tenant that it is of")
        if not (math.isfinite(self.workload_device_s) and self.workload_device_s >= 0):
            raise _unusable(self.tenant, "workload", f"{self.workload_device_s} device-seconds")
        for name in ("duration", "given", "isolated"):
            if (value := getattr(self, f"{name}_ns")) < 0:
                raise _unusable(self.tenant, f"{name} time", f"{value} ns")

    @classmethod
    def of_seconds(
        cls,
        tenant: str,
        workload_device_s: float,
        duration_s: float,
        *,
        arrival_s: float = 0.0,
        priority: int = 0,
        given_s: float = 0.0,
        isolated_s: float = 0.0,
        device: str = "",
    ) -> Demand:
        """A demand from seconds, to the nearest nanosecond.

        Raises:
            PenstockError: a figure is not finite, or negative where it may not be.
        """
        return cls(
            tenant,
            workload_device_s,
            _nanoseconds(tenant, "duration", duration_s),
            _nanoseconds(tenant, "arrival", arrival_s),
            priority,
            _nanoseconds(tenant, "given time", given_s),
            _nanoseconds(tenant, "isolated time", isolated_s),
            device,
        )

    @property
    def key(self) -> DemandKey:
        """The device that it is bound to, or "", and the tenant."""
        return (self.device, self.tenant)

    @property
    def ready_ns(self) -> int:
        """From when on it can be served in the window."""
        return max(0, self.arrival_ns)

    def slices(self, slice_ns: int) -> int:
        """K_i: how many slices of `slice_ns` it needs, the last of which may be shorter."""
        return -(-self.duration_ns // slice_ns)


def check_demands(demands: Iterable[Demand]) -> None:
    """Raises `PenstockError` if two demands are the same one, or only some are bound to devices."""
    seen: set[DemandKey] = set()
    for one in demands:
        if one.key in seen:
            where = f" on device {one.device}" if one.device else ""
            raise PenstockError(
                f"tenant {one.tenant} has two demands{where}",
                "a demand is served by one device at a time",
                "add them up, or bind each to a device of its own",
            )
        seen.add(one.key)
    free = sorted(tenant for device, tenant in seen if not device)
    if free and len(free) < len(seen):
        raise PenstockError(
            "some demands are bound to devices and others are not",
            f"not bound: {listing(free)}",
            "bind all, or none",
        )


def _nanoseconds(tenant: str, what: str, seconds: float) -> int:
    if not math.isfinite(seconds):
        raise _unusable(tenant, what, f"{seconds} s")
    return round(seconds * NS_PER_S)


def _unusable(tenant: str, what: str, value: str) -> PenstockError:
    return PenstockError(
        f"tenant {tenant} has the {what} {value}", "it must be finite, and not below 0"
    )
