"""Actions: what the pool decided, for a manager to carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from penstock.scheduling.blocks.run import Run


@dataclass(frozen=True, slots=True)
class Action:
    """One order about one application.

    start: it has these blocks and may begin. suspend: report with `Pool.suspended` or
    `Pool.not_suspended`. resume: on these blocks. end: it lost blocks with a node, and
    cannot go on; report with `Pool.release`.
    """

    what: Literal["start", "suspend", "resume", "end"]
    name: str
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a claim.

    granted: it has its blocks. starting: it gets them once others are suspended. waiting: it is in
    the queue. refused: for `reason`.
    """

    outcome: Literal["granted", "starting", "waiting", "refused"]
    actions: tuple[Action, ...] = ()
    reason: str = ""
    is_never: bool = False  # refused: no release can make room, on the nodes that are there
