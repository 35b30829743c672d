"""Longest job first (LJF): the largest planned duration first, each to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.policies.policy import Rank


class LongestFirst:
    """Runs to completion: a longer one that arrives waits for those that have begun."""

    name = "ljf"
    in_rounds = False
    ages = False

    def rank(self, _arranged: Sequence[Demand], /) -> Rank:
        """Those that have begun, then the planned duration, the largest first."""
        return lambda standing, _now_ns: (not standing.begun, -standing.demand.duration_ns)
