"""Turns: the tenants that wait for a slice, in the order of a policy."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand
    from penstock.scheduling.slices.policies.policy import Key, Policy
    from penstock.scheduling.slices.standing import Standing

# Keys that age are taken anew once at least one in so many of those that wait has been served:
# always, where few wait or many devices choose at once, and never at a cost above this a slice.
AGEING_PARTS = 16


class Turns:
    """Those that wait. Who is being served is not among them, and joins or comes back later."""

    def __init__(self, policy: Policy, arranged: Sequence[Demand]) -> None:
        self._rank = policy.rank(arranged)
        self._in_rounds = policy.in_rounds
        self._ages = policy.ages
        self._waiting: list[tuple[Key, int, Standing]] = []
        self._hand: tuple[Key, int] | None = None  # the last turn that was taken
        self._hand_round = 1
        self._ranked_ns = 0
        self._taken = 0  # since then

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, standing: Standing, now_ns: int) -> None:
        """Adds one that arrives. Round robin goes on from where it is, and gets to it in its turn.

        Otherwise a newcomer would catch up on all the rounds before it came, at a stretch.
        """
        if self._in_rounds and self._hand is not None:
            standing.round = self._hand_round
            if (self._rank(standing, now_ns), standing.place) <= self._hand:
                standing.round += 1
        self.add(standing, now_ns)

    def add(self, standing: Standing, now_ns: int) -> None:
        """Adds one that comes back from its slice."""
        heappush(self._waiting, (self._rank(standing, now_ns), standing.place, standing))

    def take(self, now_ns: int) -> Standing:
        """Takes out the one that gets the next slice. Raises IndexError if none waits."""
        if self._ages and now_ns > self._ranked_ns:
            self._taken += 1
            if self._taken * AGEING_PARTS >= len(self._waiting):
                self._rank_again(now_ns)
        key, place, standing = heappop(self._waiting)
        self._hand, self._hand_round = (key, place), standing.round
        return standing

    def _rank_again(self, now_ns: int) -> None:
        self._waiting = [
            (self._rank(standing, now_ns), place, standing) for _, place, standing in self._waiting
        ]
        heapify(self._waiting)
        self._ranked_ns, self._taken = now_ns, 0
