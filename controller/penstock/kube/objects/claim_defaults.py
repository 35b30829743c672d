"""Claim defaults: a claim that names no quantity gets an eighth of the device (ADR 24)."""

from __future__ import annotations

from penstock.model.quantity import FULL_DEVICE_PERMILLE

MIB = 1 << 20
_PARTS = 8


def usual_of(amount: int) -> int:
    """The default share of a capacity, in the unit that ResourceSlices use for it."""
    return max(1, amount // _PARTS)


def usual_memory_bytes(memory_bytes: int) -> int:
    """The default memory of a device with `memory_bytes`; ResourceSlices count it in MiB."""
    return usual_of(memory_bytes // MIB) * MIB


def usual_cores_permille(cores_permille: int = FULL_DEVICE_PERMILLE) -> int:
    """The default cores of a device with `cores_permille`."""
    return usual_of(cores_permille)
