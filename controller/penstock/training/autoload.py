"""Autoload of a rank: what a process calls that has imported torch and was started as a rank."""

from __future__ import annotations

import os

from penstock.training.names import VARIABLE


def load() -> None:
    """Makes this process a rank if it was started as one. Raises `PenstockError` if it cannot."""
    if os.environ.get(VARIABLE):
        from penstock.training.pytorch.start import start

        start()
