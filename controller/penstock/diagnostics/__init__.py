"""`penstock doctor`: is everything there that a quota needs? What was seen, and what to do.

One file a subject; each has functions that return findings and never raise for what they look at.
"""

from penstock.diagnostics.examine import examine
from penstock.diagnostics.finding import Finding, Status

__all__ = ["Finding", "Status", "examine"]
