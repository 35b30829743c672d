"""Rules of a pool: what an operator may set."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.scheduling.blocks.compaction import Cost


@dataclass(frozen=True)
class Rules:
    """What an operator may set.

    `min_run_ns`: how long a resumed application runs before it may be suspended again. `ageing_ns`:
    the wait that counts as one priority more among those that wait. `patience_ns`: once the first
    has waited so long, nothing that is not more urgent is served before it.
    """

    min_run_ns: int = 60 * 10**9
    ageing_ns: int = 3600 * 10**9
    patience_ns: int = 600 * 10**9
    cost: Cost = field(default_factory=Cost)
