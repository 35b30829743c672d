"""Autoload of a rank: what `import torch` calls, in every program on a machine that has both.

A program that is no rank costs a look at its environment.
"""

from __future__ import annotations

import os

from penstock.training.names import VARIABLE


def load() -> None:
    """Makes this process a rank if it was started as one. Raises `PenstockError` if it cannot."""
    if os.environ.get(VARIABLE):
        from penstock.training.pytorch.start import start

        start()
