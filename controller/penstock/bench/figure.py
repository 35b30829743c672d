"""One row of the table of figures: what was asked, what was measured, whether that is enough."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    what: str
    aim: str
    measured: str  # median or mean as the row says, with its spread
    runs: str  # how much went into it
    reached: bool
