"""Metered amounts of a time interval, as integers that add up exactly."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

NS = 1_000_000_000


@dataclass
class Amounts:
    """One tenant's use of one device. The field names are the store's column names."""

    charged_ns: int = 0  # device time according to the usage page's counter
    measured_ns: int = 0  # device time according to the device itself
    byte_seconds: int = 0  # memory over time according to the ledger
    measured_byte_seconds: int = 0  # memory over time according to the device itself
    metered_ns: int = 0  # time in which the tenant was observed
    estimated_ns: int = 0  # the gaps in it, with the mean of both ends as their memory
    suspicious_ns: int = 0  # impossible device time in the page, which was not charged
    suspicions: int = 0  # number of values in the page that could not be true

    def add(self, other: Amounts) -> None:
        """Adds `other` to this, unrolled because it runs for hundreds of tenants a second."""
        self.charged_ns += other.charged_ns
        self.measured_ns += other.measured_ns
        self.byte_seconds += other.byte_seconds
        self.measured_byte_seconds += other.measured_byte_seconds
        self.metered_ns += other.metered_ns
        self.estimated_ns += other.estimated_ns
        self.suspicious_ns += other.suspicious_ns
        self.suspicions += other.suspicions

    def __bool__(self) -> bool:
        return self != _NOTHING

    def split(self, weights: list[int]) -> list[Amounts]:
        """Splits this in proportion to `weights`, into parts that add up to it exactly."""
        parts = [Amounts() for _ in weights]
        total = sum(weights)
        for name in FIELDS:
            whole, done, covered = getattr(self, name), 0, 0
            for part, weight in zip(parts, weights, strict=True):
                covered += weight
                upto = whole * covered // total
                setattr(part, name, upto - done)
                done = upto
        return parts


_NOTHING = Amounts()
FIELDS = tuple(field.name for field in dataclasses.fields(Amounts))
