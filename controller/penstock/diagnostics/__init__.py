"""Checks of `penstock doctor`: whether everything that a quota needs is present, with advice.

Each subject has its own file, whose functions report a fault as a finding and never raise.
"""

from penstock.diagnostics.examine import examine
from penstock.diagnostics.finding import Finding, Status

__all__ = ["Finding", "Status", "examine"]
