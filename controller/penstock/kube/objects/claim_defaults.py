"""Claim defaults: a claim that requests no quantity gets an eighth of the device (ADR 24)."""

from __future__ import annotations

from penstock.model.quantity import FULL_DEVICE_PERMILLE

MIB = 1 << 20
_PARTS = 8


def usual_of(amount: int) -> int:
    """The default share of a capacity, in the unit in which ResourceSlices give the capacity."""
    return max(1, amount // _PARTS)


def usual_memory_bytes(memory_bytes: int) -> int:
    """The default memory share of a device, in whole MiB because ResourceSlices count in MiB."""
    return usual_of(memory_bytes // MIB) * MIB


def usual_cores_permille(cores_permille: int = FULL_DEVICE_PERMILLE) -> int:
    """The default share of a device's cores."""
    return usual_of(cores_permille)
