"""Applications of a pool: what each asked for, what it holds, and what it does now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.scheduling.blocks.run import total

if TYPE_CHECKING:
    from penstock.scheduling.blocks.claim import Claim
    from penstock.scheduling.blocks.placement import Home
    from penstock.scheduling.blocks.run import Run

# starting: it has its blocks, and waits until those it makes suspend have done so. suspending: its
# blocks are promised, it has not given them back yet. lost: a node of its blocks has left.
Phase = Literal["waiting", "starting", "running", "suspending", "suspended", "moving", "lost"]


@dataclass(slots=True)
class Application:
    """One application."""

    name: str
    claim: Claim
    since_ns: int  # it waits, runs, or is suspended since then
    phase: Phase = "waiting"
    runs: tuple[Run, ...] = ()
    safe_until_ns: int = 0  # it was resumed lately, and is not suspended again before
    frees_memory: bool = False  # suspension frees its device memory: proven on all its cards
    blockers: frozenset[str] = frozenset()  # starting: applications that still have to suspend
    source: tuple[Run, ...] = ()  # moving: what it comes from
    starter: str = ""  # suspending: who may start when it has; that one may be gone
    home: Home = ()  # suspended: where it ran
    # What nobody else may have because of it though it is promised away, or comes with a move:
    # blocks, and bytes by node and card.
    kept_runs: tuple[Run, ...] = ()
    kept_bytes: tuple[tuple[int, int, int], ...] = ()

    @property
    def blocks(self) -> int:
        """The blocks that it holds; rounding up may make them more than it asked for."""
        return total(self.runs)
