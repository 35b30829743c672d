"""Penstock's control plane: policies, devices, tenants of one node, and the command line.

The library is `penstock.acquire` and `penstock.estimate`, which are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client import Card, acquire
    from penstock.estimation import Estimate, estimate
    from penstock.model import PenstockError

__version__ = "0.1.0"
__all__ = ["Card", "Estimate", "PenstockError", "__version__", "acquire", "estimate"]


def __getattr__(name: str) -> object:
    """The library's names; what needs only the version, or the command line, loads nothing."""
    if name in {"Card", "acquire"}:
        from penstock import client

        return getattr(client, name)
    if name in {"Estimate", "estimate"}:
        from penstock import estimation

        return getattr(estimation, name)
    if name == "PenstockError":
        from penstock.model import PenstockError

        return PenstockError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
