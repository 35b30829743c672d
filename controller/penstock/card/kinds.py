"""Kinds of cards that a program can name, and the class of each kind's adapter."""

from __future__ import annotations

from penstock.model import PenstockError, nearest

# A kind's adapter is loaded in the worker of a card of that kind.
ADAPTERS = {
    "cpu": "penstock.card.adapters.cpu:CpuAdapter",
    "cuda": "penstock.card.adapters.cuda:CudaAdapter",
    "npu": "penstock.card.adapters.npu:NpuAdapter",
    "xpu": "penstock.card.adapters.xpu:XpuAdapter",
}


def kind_and_number(text: str) -> tuple[str, int]:
    """The parts of a card such as "cuda:1": its kind, and which device of that kind (else 0).

    Raises:
        PenstockError: there is no such kind, or what follows the colon is no number.
    """
    kind, colon, number = text.partition(":")
    if kind not in ADAPTERS:
        near = nearest(kind, ADAPTERS)
        raise PenstockError(
            f"unknown kind of card {kind[:40]!r}", f"there are adapters for {', '.join(ADAPTERS)}",
            f"did you mean {near}?" if near else "name one of these",
        )  # fmt: skip
    if colon and not (number.isascii() and number.isdecimal() and len(number) < 5):
        raise PenstockError(
            f"unknown card {text[:40]!r}", "what follows the colon is no number of a device",
            "write it like cuda:1",
        )  # fmt: skip
    return kind, int(number or 0)
