"""Speeds of cards in samples a second, measured in every step, and the weights that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY = 0.7  # what a former measurement still counts after a new one
NOTICED = 0.03  # a weight that changes by less, as a part of it, stays
FIRST = 2  # steps that do not count: memory is taken and kernels are chosen in them


class Speeds:
    """Measured speeds of all cards, the same on each rank.

    Attributes:
        weights: What the cards get of a batch, in proportion.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """`weights`: until speeds are known."""
        self.weights = tuple(weights)
        self._rates: list[float | None] = [None] * len(self.weights)
        self._steps = 0

    def add(self, ran: Sequence[int], seconds: Sequence[float]) -> None:
        """Takes a step: samples that each card computed, and its seconds without any waiting."""
        self._steps += 1
        if self._steps <= FIRST:
            return
        for i, (count, took_s) in enumerate(zip(ran, seconds, strict=True)):
            if count and took_s > 0:
                old, new = self._rates[i], count / took_s
                # The mean of times, not of rates: a step that took long is not outweighed.
                self._rates[i] = new if old is None else 1 / (MEMORY / old + (1 - MEMORY) / new)
        rates = [one for one in self._rates if one is not None]
        if len(rates) < len(self._rates):
            return
        total, former = sum(rates), sum(self.weights)
        if any(abs(new / total * former / old - 1) > NOTICED if old else new > 0
               for new, old in zip(rates, self.weights, strict=True)):  # fmt: skip
            self.weights = tuple(rates)
