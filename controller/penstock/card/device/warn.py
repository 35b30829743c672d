"""Warnings of the virtual card that no line of the program has caused."""

from __future__ import annotations

import contextlib
import warnings

from penstock.card.names import PenstockCardWarning


def warn(text: str) -> None:
    """Warns, also where warnings are errors: what failed is only beside the program's work."""
    with contextlib.suppress(Warning):
        warnings.warn_explicit(text, PenstockCardWarning, "penstock.card", 0)
