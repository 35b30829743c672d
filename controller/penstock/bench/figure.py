"""One row of the results table: target, measurement, and whether it meets the target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    what: str
    aim: str
    measured: str  # median or mean, as named in the row, with its spread
    runs: str  # number of measurements behind it
    reached: bool
