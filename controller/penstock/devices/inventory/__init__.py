"""Inventory and state of this machine's devices of every kind, independent of quotas.

A value that is not available is a `NotAvailable`, which gives the reason. To add a kind, write a
class with `kind` and `look` in its own file, and add it to `survey`.
"""

from penstock.devices.inventory.figure import Figure, NotAvailable, known
from penstock.devices.inventory.report import (
    KINDS,
    DeviceReport,
    Health,
    Inventory,
    Kind,
    Survey,
    blank,
)

__all__ = [
    "KINDS",
    "DeviceReport",
    "Figure",
    "Health",
    "Inventory",
    "Kind",
    "NotAvailable",
    "Survey",
    "blank",
    "known",
]
