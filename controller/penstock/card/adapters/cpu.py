"""The CPU as a card: a stand-in for tests, and for machines without accelerators."""

from __future__ import annotations

import torch

from penstock.card.adapters.adapter import Adapter


class CpuAdapter(Adapter):
    """Processor cores as a card. Each operation is done when it returns."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def synchronize(self) -> None:
        """Returns at once."""
