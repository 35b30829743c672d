"""A GPU by CUDA or ROCm as a card: torch's device cuda."""

from __future__ import annotations

import torch

from penstock.card.adapters.accelerator import Accelerator


class CudaAdapter(Accelerator):
    """A GPU by CUDA or ROCm."""

    def __init__(self, number: int = 0) -> None:
        """Opens the device of this number. Raises `PenstockError` if there is none."""
        super().__init__("cuda", torch.cuda, number)
