"""Max-min fairness: the tenant with the least device time so far gets the next slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.policies.policy import Rank


class MaxMin:
    """Those that start equal take turns; one that lags gets several slices until it has caught up.

    So nobody has a bound on its wait: newcomers come first.
    """

    name = "max-min"
    in_rounds = False
    ages = False

    def rank(self, _arranged: Sequence[Demand], /) -> Rank:
        """The device time that it was given before the window and in it, in ns."""
        return lambda standing, _now_ns: (standing.demand.given_ns + standing.given_ns,)
