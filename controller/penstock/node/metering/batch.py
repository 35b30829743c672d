"""A batch of metered amounts to store, by minute, hour and day of the wall clock."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.node.metering.metered_amounts import NS, Amounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.node.metering.account import Account, Step
    from penstock.node.metering.clock import Moment
    from penstock.node.metering.reading import Identity

UNITS_S = MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
MOST_PIECES = 200  # an interval with more units is recorded in the next coarser unit
MOST_ROWS = 50_000  # rows kept while nothing can be stored; beyond that, they become coarser
Key = tuple[str, str]  # incarnation, device UUID


@dataclass
class Batch:
    """Amounts that are stored atomically and only once; `name` shows whether they were stored."""

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    identities: dict[str, Identity] = field(default_factory=dict)  # by incarnation
    accounts: dict[Key, Account] = field(default_factory=dict)
    usage: dict[tuple[int, int, Key], Amounts] = field(default_factory=dict)  # unit_s, start_s

    def __bool__(self) -> bool:
        return bool(self.accounts or self.usage)

    def put(self, key: Key, identity: Identity, at: Moment, step: Step) -> None:
        """Adds one step, and its amounts to the time units that the step covers."""
        self.identities[identity.incarnation] = identity
        self.accounts[key] = step.account
        if step.amounts:
            for unit_s, start_s, part in _places(at.wall_ns, step.elapsed_ns, step.amounts):
                self._add(unit_s, start_s, key, part)
            if len(self.usage) > MOST_ROWS:
                self.coarsen()

    def coarsen(self) -> None:
        """Merges minutes into hours and, if there are still too many, hours into days."""
        for fine_s, coarse_s in ((MINUTE_S, HOUR_S), (HOUR_S, DAY_S)):
            for unit_s, start_s, key in [one for one in self.usage if one[0] == fine_s]:
                part = self.usage.pop((unit_s, start_s, key))
                self._add(coarse_s, start_s - start_s % coarse_s, key, part)
            if len(self.usage) <= MOST_ROWS // 2:
                return

    def _add(self, unit_s: int, start_s: int, key: Key, amounts: Amounts) -> None:
        place = (unit_s, start_s, key)
        known = self.usage.get(place)
        if known is None:
            self.usage[place] = amounts
        else:
            known.add(amounts)


def _places(wall_ns: int, elapsed_ns: int, amounts: Amounts) -> Iterator[tuple[int, int, Amounts]]:
    """Splits the `amounts` of the interval that ended at `wall_ns` into minutes, hours or days.

    The interval's length comes from the monotonic clock, whatever the wall clock did in the
    meantime.
    """
    begin_ns = wall_ns - elapsed_ns
    for unit_s in UNITS_S:
        unit_ns = unit_s * NS
        first, last = begin_ns // unit_ns, wall_ns // unit_ns
        if first == last:
            yield unit_s, last * unit_s, amounts
            return
        if last - first < MOST_PIECES or unit_s == DAY_S:
            break
    starts = range(first, last + 1)
    weights = [min(wall_ns, (one + 1) * unit_ns) - max(begin_ns, one * unit_ns) for one in starts]
    for one, part in zip(starts, amounts.split(weights), strict=True):
        if part:
            yield unit_s, one * unit_s, part
