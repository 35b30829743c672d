"""Schedule record: which planned slices ran when, for how long and where, and what was left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.scheduling.slices.demand import DemandKey


class Ran(NamedTuple):
    """A slice for which a tenant had a device.

    `number`: of the planned slice, from 1; 0, or beyond its planned ones: the tenant was given what
    others left idle. `length_ns`: how long it worked; 0: it had nothing to do. A slice that was
    interrupted has several entries.
    """

    device: str
    tenant: str
    number: int
    start_ns: int
    length_ns: int


@dataclass(frozen=True, slots=True)
class Record:
    """What was carried out of a plan, times from the window's start.

    `left_ns`: work that tenants had at the window's end and that was not done, by the demand's key.
    Who is not in it had none left. Work that nobody asked for is not left.
    """

    ran: tuple[Ran, ...]
    left_ns: Mapping[DemandKey, int]
