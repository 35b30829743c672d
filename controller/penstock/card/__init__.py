"""The virtual card: many unlike cards as one PyTorch device, torch.device("penstock")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.card.names import PenstockCardWarning

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path


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


def trace(file: str | Path) -> AbstractContextManager[None]:
    """A context in which all cards and the program write what they do to a file for Perfetto.

    The file has Chrome's trace events; open it at https://ui.perfetto.dev. It may be read after a
    crash, too. Starts the cards if they are not started.

    Raises:
        PenstockError: the program has no card, a trace is being taken already, or the file cannot
        be written.
    """
    from penstock.card.device.tracing import traced

    return traced(file)


__all__ = ["PenstockCardWarning", "load", "trace"]
