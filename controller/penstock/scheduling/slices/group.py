"""Groups: demands and the suppliers that serve them and nobody else, and how they are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model import PenstockError
from penstock.scheduling.slices.arrangement import arranged
from penstock.scheduling.slices.rounds import rounds
from penstock.scheduling.slices.service import Service
from penstock.scheduling.slices.standing import Standing
from penstock.scheduling.slices.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.lap import Lap
    from penstock.scheduling.slices.policies.policy import Policy
    from penstock.scheduling.slices.supplier import Supplier

# Slices that are laid one by one, of one length: beyond, a plan would take minutes and gigabytes.
MOST_SLICES = 10_000_000


@dataclass(frozen=True, slots=True)
class Group:
    """Demands and suppliers, each in their random order.

    They are a device and those bound to it, or all devices and all demands.
    """

    demands: Sequence[Demand]
    suppliers: Sequence[Supplier]

    @classmethod
    def of(cls, demands: Iterable[Demand], suppliers: Iterable[Supplier], seed: int) -> Group:
        """The group in the order of a seed."""
        return cls(
            arranged(demands, seed, lambda one: ("demand", *one.key)),
            arranged(suppliers, seed, lambda one: ("supplier", one.device, str(one.from_ns))),
        )

    def planned_laps(self, policy: Policy, slice_ns: int) -> list[tuple[Lap, ...]]:
        """The laps of each supplier, in which all demands are done.

        Raises:
            PenstockError: the slices are too many to be laid one by one.
        """
        all_there = not any(one.ready_ns for one in self.demands)
        if len(self.suppliers) == 1 and policy.in_rounds and all_there:
            return [rounds(self._order(policy), slice_ns, self.suppliers[0].switch_ns)]
        count = sum(one.slices(slice_ns) for one in self.demands)
        if count > MOST_SLICES:
            raise PenstockError(
                f"the plan would have {count} slices of {slice_ns} ns",
                f"at most {MOST_SLICES} can be laid one by one",
                "allow only longer slices, or plan a shorter window",
            )
        standings = [
            Standing(one, place, one.duration_ns, one.ready_ns)
            for place, one in enumerate(self.demands)
        ]
        return Service(standings, self.suppliers, Turns(policy, self.demands), slice_ns).run()

    def _order(self, policy: Policy) -> list[Demand]:
        """The demands in the policy's order within a round."""
        rank = policy.rank(self.demands)
        standings = [Standing(one, place, 0) for place, one in enumerate(self.demands)]
        standings.sort(key=lambda one: (rank(one, 0), one.place))
        return [one.demand for one in standings]
