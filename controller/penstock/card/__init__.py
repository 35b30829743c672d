"""The virtual card: many unlike cards as one PyTorch device, torch.device("penstock")."""

from __future__ import annotations


def load() -> None:
    """Gives torch the device in a program that set TORCH_DEVICE_BACKEND_AUTOLOAD=0.

    Raises:
        PenstockError: it cannot have the device, for instance because another extension has the
        place.
    """
    from penstock.card import autoload
    from penstock.model import PenstockError

    autoload.load()
    if autoload.problem is not None:
        raise PenstockError(
            "torch has no device penstock", autoload.problem,
            "start the program with penstock run --tflops N -- COMMAND",
        )  # fmt: skip
