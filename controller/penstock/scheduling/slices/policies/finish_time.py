"""Finish-time fairness, as in Themis (Mahajan et al., NSDI 2020): the largest rho first.

rho is the time from submission to end, over the same time under a share of its own. The end is
taken as if the tenant ran alone from now on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.policies.policy import Key, Rank
    from penstock.scheduling.slices.standing import Standing


class FinishTime:
    """Whoever is treated worst, compared with a share of its own, comes first."""

    name = "finish-time"
    in_rounds = False
    ages = True

    def rank(self, _arranged: Sequence[Demand], /) -> Rank:
        """rho, the largest first."""
        return _key


def rho(standing: Standing, now_ns: int) -> float:
    """The finish-time ratio of a tenant that runs alone from now on; 1 is its due."""
    demand = standing.demand
    alone_ns = demand.isolated_ns or max(1, demand.given_ns + demand.duration_ns)
    return (now_ns - demand.arrival_ns + standing.remaining_ns) / alone_ns


def _key(standing: Standing, now_ns: int) -> Key:
    return (-rho(standing, now_ns),)
