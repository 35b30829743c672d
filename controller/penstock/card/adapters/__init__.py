"""Adapters: what a worker needs to know of one kind of card. One file a kind."""

from __future__ import annotations

import importlib

from penstock.card.adapters.adapter import Adapter
from penstock.card.kinds import ADAPTERS, kind_and_number


def open_adapter(text: str) -> Adapter:
    """The adapter of a card such as "cuda:1": a kind, and which of its devices (the first).

    Raises:
        PenstockError: there is no such card.
    """
    kind, number = kind_and_number(text)
    module, _, name = ADAPTERS[kind].partition(":")
    return getattr(importlib.import_module(module), name)(number)


__all__ = ["Adapter", "open_adapter"]
