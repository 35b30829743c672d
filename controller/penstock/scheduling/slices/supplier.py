"""Suppliers: the devices that serve tenants in a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Supplier:
    """A device.

    `switch_ns`: the measured cost of a switch from one tenant to another. `from_ns` and `until_ns`:
    when it is there, from the window's start; None: to the end and beyond. Plans are made as if
    every device stayed; when a plan is carried out in virtual time, a device that was away in
    between is several suppliers of one name.
    """

    device: str
    switch_ns: int = 0
    from_ns: int = 0
    until_ns: int | None = None

    def __post_init__(self) -> None:
        if not self.device:
            raise PenstockError("a device has no name", fix="name it, such as by its UUID")
        if self.switch_ns < 0:
            raise PenstockError(
                f"device {self.device} has a switch cost of {self.switch_ns} ns",
                "a cost is not below 0",
                "measure it again",
            )

    @property
    def last_ns(self) -> int | None:
        """The time from which on it begins no further slice: a switch could outlast its stay."""
        return None if self.until_ns is None else self.until_ns - self.switch_ns


def check_suppliers(suppliers: Iterable[Supplier]) -> None:
    """Raises `PenstockError` if a device is there twice at the same time, or none is there."""
    free_ns: dict[str, int | None] = {}
    for one in sorted(suppliers, key=lambda one: (one.device, one.from_ns)):
        before_ns = free_ns.get(one.device, one.from_ns)
        if before_ns is None or one.from_ns < before_ns:
            raise PenstockError(
                f"device {one.device} is listed twice", "a device serves one tenant at a time"
            )
        free_ns[one.device] = one.until_ns
    if not free_ns:
        raise PenstockError("there is no device to plan for", fix="name at least one")
