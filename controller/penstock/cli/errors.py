"""Which exceptions are a user's to put right, and how they read on one line or a few."""

from __future__ import annotations

from penstock.model import PenstockError, QuantityError


def user_message(error: BaseException) -> str | None:
    """The text for a user error; None for what is a fault of Penstock's own."""
    if isinstance(error, (PenstockError, QuantityError)):
        return str(error)
    if isinstance(error, OSError):  # disk full, no permission, a file that is gone
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    # Errors of the shim's binding (pages, simulator) carry the same kind of text. Their module is
    # asked for by name, so that commands that need no shim do not load it.
    if any(kind.__module__.startswith("penstock_shim.") for kind in type(error).__mro__):
        return str(error)
    return None
