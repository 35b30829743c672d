"""An Intel GPU as a card: torch's device xpu."""

from __future__ import annotations

import torch

from penstock.card.adapters.accelerator import Accelerator


class XpuAdapter(Accelerator):
    """An Intel GPU."""

    def __init__(self, number: int = 0) -> None:
        """Opens the device of this number. Raises `PenstockError` if there is none."""
        super().__init__("xpu", torch.xpu, number)
