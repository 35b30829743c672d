"""First come, first served (FCFS): in the order of arrival, each to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.policies.policy import Rank


class FirstCome:
    """Runs to completion."""

    name = "fcfs"
    in_rounds = False
    ages = False

    def rank(self, _arranged: Sequence[Demand], /) -> Rank:
        """The arrival."""
        return lambda standing, _now_ns: (standing.demand.arrival_ns,)
