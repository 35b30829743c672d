"""Elastic allowance: device time left idle by others goes to elastic tenants. Pure functions.

Every supervisor computes it for all tenants of a device from the same figures, and applies only its
own tenant's part, so no process decides for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.model.quantity import FULL_DEVICE_PERMILLE

if TYPE_CHECKING:
    from collections.abc import Sequence

# Kept above the recent use of a tenant that requests no more, so that growth of its use shows.
HEADROOM_PERMILLE = 20
# A device that several tenants keep busy loses time by switching between them. If the allowances
# added up to more than the device can give, the tenant with the largest would bear the whole loss.
MOST_LOST_PERMILLE = 50
PROBE_PERMILLE = 5  # added to the use of the last second, to find out if more is possible


@dataclass(frozen=True)
class Demand:
    """One tenant's recent use of a device."""

    tenant: str
    cores_permille: int
    elastic: bool
    used_permille: int  # in about the last second
    asking: bool  # launches were waiting or work was queued a moment ago
    active: bool  # did any work in the last second

    @property
    def need_permille(self) -> int:
        """Permille the tenant could use now: all if asking, else slightly more than it uses."""
        if self.asking:
            return FULL_DEVICE_PERMILLE if self.elastic else self.cores_permille
        return self.used_permille + HEADROOM_PERMILLE if self.active else 0


def allowances(demands: Sequence[Demand]) -> dict[str, int]:
    """Permille that each tenant may use now: at least its cores, and more only if elastic.

    A tenant reserves as many of its cores as it can use, and all of them from the moment it asks
    for more. The rest is shared among the elastic tenants in proportion to their cores, up to each
    one's need.
    """
    kept = {d.tenant: min(d.cores_permille, d.need_permille) for d in demands}
    spare = max(0, _capacity(demands) - sum(kept.values()))
    extra = _share_out(spare, [d for d in demands if d.elastic])
    return {
        d.tenant: min(
            FULL_DEVICE_PERMILLE, max(d.cores_permille, kept[d.tenant] + extra.get(d.tenant, 0))
        )
        for d in demands
    }


def _capacity(demands: Sequence[Demand]) -> int:
    """Permille that the device can give: all, unless several tenants keep the device busy."""
    active = [d for d in demands if d.active]
    if len(active) < 2 or not all(d.asking for d in active):
        return FULL_DEVICE_PERMILLE
    given = sum(d.used_permille for d in active) + PROBE_PERMILLE
    return max(FULL_DEVICE_PERMILLE - MOST_LOST_PERMILLE, min(FULL_DEVICE_PERMILLE, given))


def _share_out(spare: int, elastic: Sequence[Demand]) -> dict[str, int]:
    """Shares `spare` by weight; what a tenant cannot use goes to the others (water-filling)."""
    room = {d.tenant: max(0, d.need_permille - d.cores_permille) for d in elastic}
    weight = {d.tenant: d.cores_permille for d in elastic}
    given = dict.fromkeys(room, 0)
    unsatisfied = [tenant for tenant in sorted(room) if room[tenant]]
    while spare and unsatisfied:
        total = sum(weight[tenant] for tenant in unsatisfied)
        portions = {t: min(room[t] - given[t], spare * weight[t] // total) for t in unsatisfied}
        if not any(portions.values()):
            # Each would get less than one permille, so the tenant with the largest weight gets it
            # all.
            given[max(unsatisfied, key=lambda t: (weight[t], t))] += spare
            break
        for tenant, portion in portions.items():
            given[tenant] += portion
            spare -= portion
        unsatisfied = [tenant for tenant in unsatisfied if given[tenant] < room[tenant]]
    return given
