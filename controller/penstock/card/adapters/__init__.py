"""Adapters: what a worker needs to know of one kind of card. One file a kind."""

from __future__ import annotations

import importlib

from penstock.card.adapters.adapter import Adapter
from penstock.model import PenstockError, nearest

# A kind of card and the class of its adapter; a kind is loaded when a card of it is opened.
KINDS = {
    "cpu": "penstock.card.adapters.cpu:CpuAdapter",
    "cuda": "penstock.card.adapters.cuda:CudaAdapter",
    "npu": "penstock.card.adapters.npu:NpuAdapter",
    "xpu": "penstock.card.adapters.xpu:XpuAdapter",
}


def open_adapter(text: str) -> Adapter:
    """The adapter of a card such as "cuda:1": a kind, and which of its devices (the first).

    Raises:
        PenstockError: there is no such card.
    """
    kind, _, number = text.partition(":")
    named = KINDS.get(kind)
    if number and not number.isdecimal():
        raise PenstockError(
            f"unknown card {text[:40]!r}", "what follows the colon is no number",
            "write it like cuda:1",
        )  # fmt: skip
    if named is None:
        near = nearest(kind, KINDS)
        raise PenstockError(
            f"unknown kind of card {kind[:40]!r}", f"there are adapters for {', '.join(KINDS)}",
            f"did you mean {near}?" if near else "name one of these",
        )  # fmt: skip
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)(int(number or 0))


__all__ = ["Adapter", "open_adapter"]
