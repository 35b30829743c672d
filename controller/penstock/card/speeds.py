"""Speeds of cards: what they are worth to each other, measured on all of them at the same time.

Cards that share a machine slow each other down, and a quota slows a card down, so rated speeds are
of little use. The measurement at the start takes a second; `measure` may be called again while
a program runs, and `Session.set_speeds` takes what it gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.card.frames import Kind, pack_probe, unpack_rates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.card.link import CardLink

PROBE_S = 0.3  # for products, and as long for convolutions


def measure(links: Sequence[CardLink], probe_s: float = PROBE_S) -> tuple[float, ...]:
    """The speeds of cards, that of the fastest is 1. Raises `CardError`, `OperationError`."""
    replies = [link.request(Kind.PROBE, pack_probe(probe_s)) for link in links]
    return relative_speeds([unpack_rates(reply.result()) for reply in replies])


def relative_speeds(rates: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Speeds from each card's multiplications a second in products and in convolutions.

    Half of the work is taken to be of each kind, as measured by the time that the fastest card
    needs for it.
    """
    fastest = [max(one) for one in zip(*rates, strict=True)]
    times = [sum(most / rate for most, rate in zip(fastest, one, strict=True)) for one in rates]
    return tuple(min(times) / one for one in times)
