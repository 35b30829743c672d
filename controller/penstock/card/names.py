"""Names that all parts of the virtual card share."""

from __future__ import annotations

VARIABLE = "PENSTOCK_CARD"  # the cards of this program; "off": torch is left alone
FIRST_TORCH, END_TORCH = (2, 13), (2, 16)  # tested releases: from the first on, before the end
