"""Strict priority: the most urgent first, equals in the order of arrival, each to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.policies.policy import Rank


class StrictPriority:
    """Runs to completion, but a more urgent one that arrives takes over at the end of a slice."""

    name = "priority"
    in_rounds = False
    ages = False

    def rank(self, _arranged: Sequence[Demand], /) -> Rank:
        """The priority, then the arrival."""
        return lambda standing, _now_ns: (-standing.demand.priority, standing.demand.arrival_ns)
