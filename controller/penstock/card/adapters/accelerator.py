"""`Accelerator`: what the adapters of torch's accelerators share."""

from __future__ import annotations

from typing import Any

import torch

from penstock.card.adapters.adapter import Adapter
from penstock.model import PenstockError


class Accelerator(Adapter):
    """A device that computes while its process goes on, with a module like torch.cuda."""

    def __init__(self, kind: str, module: Any, number: int) -> None:
        """Opens a device of torch. Raises `PenstockError` if there is none of this number."""
        count = module.device_count()
        if number >= count:
            raise PenstockError(
                f"there is no {kind}:{number}", f"torch {torch.__version__} sees {count} of them",
                f"see python -c 'import torch; print(torch.{kind}.device_count())' in the worker's "
                "environment",
            )  # fmt: skip
        self.device = torch.device(kind, number)
        self._module = module
        module.set_device(number)

    def synchronize(self) -> None:
        """Returns when all work on the card is done."""
        self._module.synchronize(self.device)

    def memory_bytes(self) -> tuple[int, int]:
        """The device's memory: free, and in total."""
        free_bytes, total_bytes = self._module.mem_get_info(self.device)
        return free_bytes, total_bytes
