"""One row of the results table: target, measurement, and whether it meets the target."""

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
