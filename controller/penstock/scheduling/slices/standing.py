"""Standings: where each tenant stands while a window is served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.scheduling.slices.demand import Demand


@dataclass(slots=True, eq=False)
class Standing:
    """A tenant's state, which policies look at and the service changes.

    `place`: its index in the random arrangement, which decides between equals. `remaining_ns`: what
    is left of its work. `ready_ns`: when it comes. `given_ns`: what it was given in this window.
    `begun`: how many slices it was given. `round`: that of its next slice. `last_on`: the index of
    the supplier that served it last; -1: none has.
    """

    demand: Demand
    place: int
    remaining_ns: int
    ready_ns: int = 0
    given_ns: int = 0
    begun: int = 0
    round: int = 1
    last_on: int = -1
