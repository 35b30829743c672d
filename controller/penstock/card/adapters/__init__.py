"""Adapters: what a worker needs to know of one kind of card. One file a kind."""

from __future__ import annotations

import importlib

from penstock.card.adapters.adapter import Adapter
from penstock.model import PenstockError, nearest

# A kind of card and the class of its adapter; a kind is loaded when a card of it is opened.
KINDS = {
    "cpu": "penstock.card.adapters.cpu:CpuAdapter",
}


def open_adapter(kind: str) -> Adapter:
    """The adapter of this process's card. Raises `PenstockError` if there is no such card."""
    named = KINDS.get(kind)
    if named is None:
        near = nearest(kind, KINDS)
        raise PenstockError(
            f"unknown kind of card {kind[:40]!r}", f"there are adapters for {', '.join(KINDS)}",
            f"did you mean {near}?" if near else "name one of these",
        )  # fmt: skip
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)()


__all__ = ["Adapter", "open_adapter"]
