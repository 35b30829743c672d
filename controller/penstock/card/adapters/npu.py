"""An Ascend NPU as a card: the device npu of the extension torch_npu."""

from __future__ import annotations

from penstock.card.adapters.accelerator import Accelerator
from penstock.model import PenstockError


class NpuAdapter(Accelerator):
    """An NPU by torch_npu, which must be installed where the worker runs."""

    def __init__(self, number: int = 0) -> None:
        """Opens the device of this number. Raises `PenstockError` if there is none."""
        try:
            import torch_npu
        except ImportError as error:
            raise PenstockError(
                "no NPU can be used here", f"torch_npu cannot be imported: {error}",
                "install the torch_npu that belongs to this torch and to the NPU's driver",
            ) from error  # fmt: skip
        super().__init__("npu", torch_npu.npu, number)
