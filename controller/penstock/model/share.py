"""Shares of devices: an amount of one device's memory and compute time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Part of one device: memory in bytes and compute time in permille."""

    memory_bytes: int
    cores_permille: int

    def __add__(self, other: Share) -> Share:
        """The sum of both shares."""
        return Share(
            self.memory_bytes + other.memory_bytes, self.cores_permille + other.cores_permille
        )

    def __sub__(self, other: Share) -> Share:
        """This share minus `other`; amounts may be negative."""
        return Share(
            self.memory_bytes - other.memory_bytes, self.cores_permille - other.cores_permille
        )

    def at_least(self, other: Share) -> Share:
        """The larger amount of memory and the larger amount of compute time of both shares."""
        return Share(
            max(self.memory_bytes, other.memory_bytes),
            max(self.cores_permille, other.cores_permille),
        )


NOTHING = Share(0, 0)
