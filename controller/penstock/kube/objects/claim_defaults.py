"""What a claim gets of a device that names no amount: an eighth (ADR 24)."""

from __future__ import annotations

from penstock.model.quantity import FULL_DEVICE_PERMILLE

MIB = 1 << 20
_PARTS = 8


def usual_of(amount: int) -> int:
    """Of a capacity, in whatever unit slices tell it."""
    return max(1, amount // _PARTS)


def usual_memory_bytes(memory_bytes: int) -> int:
    """Of a device that has so much; slices tell memory in MiB."""
    return usual_of(memory_bytes // MIB) * MIB


def usual_cores_permille(cores_permille: int = FULL_DEVICE_PERMILLE) -> int:
    """Of a device that has so many."""
    return usual_of(cores_permille)
