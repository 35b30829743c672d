"""`penstock doctor`: checks everything that a quota needs, and says what to do.

Each subject has its file, with functions that return findings and never raise for what they check.
"""

from penstock.diagnostics.examine import examine
from penstock.diagnostics.finding import Finding, Status

__all__ = ["Finding", "Status", "examine"]
