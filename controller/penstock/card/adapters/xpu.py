"""An Intel GPU as a card: torch's device xpu."""

from __future__ import annotations

import torch

from penstock.card.adapters.accelerator import Accelerator


class XpuAdapter(Accelerator):
    """An Intel GPU."""

    def __init__(self, number: int = 0) -> None:
        """Opens the device of this number. Raises `PenstockError` if there is none."""
        super().__init__("xpu", torch.xpu, number)

    def memory_bytes(self) -> tuple[int, int]:
        """The device's memory: free, and in total.

        Where the driver does not tell what is free, that is what this process has not taken.
        """
        try:
            return super().memory_bytes()
        except RuntimeError:
            total_bytes = torch.xpu.get_device_properties(self.device).total_memory
            return total_bytes - torch.xpu.memory_reserved(self.device), total_bytes
