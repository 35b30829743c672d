"""Heap: round robin, each round in the pre-order of the max-heap of workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.scheduling.slices.heap_order import max_heap, pre_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.policies.policy import Key, Rank
    from penstock.scheduling.slices.standing import Standing


class Heap:
    """Who is not among the window's demands comes behind them, in the order of places."""

    name = "heap"
    in_rounds = True
    ages = False

    def rank(self, arranged: Sequence[Demand], /) -> Rank:
        """The round, then the position in the heap's pre-order."""
        positions = [0] * len(arranged)
        order = pre_order(max_heap([one.workload_device_s for one in arranged]))
        for position, place in enumerate(order):
            positions[place] = position

        def key(standing: Standing, _now_ns: int) -> Key:
            place = standing.place
            return standing.round, positions[place] if place < len(positions) else place

        return key
