"""What is in this machine, of any kind, and how it does; quotas are another matter.

A figure that cannot be had is `NotAvailable` and says why. To add a kind: a file with a class that
has `kind` and `look`, and its line in `survey`.
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
