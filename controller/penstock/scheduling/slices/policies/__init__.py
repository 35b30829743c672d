"""Policies: who gets the next slice. One file each, and one line in `POLICIES`.

To add one, write a class with what `policy.Policy` lists, in a file of its own, and enter it below.
`Service` and `Turns` need no change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model import PenstockError, nearest
from penstock.scheduling.slices.policies.finish_time import FinishTime
from penstock.scheduling.slices.policies.first_come import FirstCome
from penstock.scheduling.slices.policies.heap import Heap
from penstock.scheduling.slices.policies.longest_first import LongestFirst
from penstock.scheduling.slices.policies.max_min import MaxMin
from penstock.scheduling.slices.policies.shortest_first import ShortestFirst
from penstock.scheduling.slices.policies.strict_priority import StrictPriority

if TYPE_CHECKING:
    from penstock.scheduling.slices.policies.policy import Policy

POLICIES: dict[str, Policy] = {
    one.name: one
    for one in (
        Heap(),
        FirstCome(),
        ShortestFirst(),
        LongestFirst(),
        StrictPriority(),
        MaxMin(),
        FinishTime(),
    )
}


def policy_named(name: str) -> Policy:
    """The policy of a name. Raises `PenstockError` if there is none."""
    if name in POLICIES:
        return POLICIES[name]
    meant = nearest(name, POLICIES)
    raise PenstockError(
        f"there is no policy {name!r}",
        f"policies are {', '.join(POLICIES)}",
        f"did you mean {meant}?" if meant else "choose one of them",
    )
