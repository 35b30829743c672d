"""Slice lengths: the one whose switches and waits together cost the least."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

NS_PER_MS = 10**6

# From the shortest slice that the gate keeps well to the longest for which people gladly wait.
LENGTHS_NS = tuple(ms * NS_PER_MS for ms in (10, 20, 50, 100))


@dataclass(frozen=True, slots=True)
class LengthCost:
    """What a slice length t0 costs: c·K + W, in time.

    `slices`: K, in all. `rounds`: U. `switching_ns`: c·K, each slice counted with the measured cost
    of a switch on its device. `waits_ns`: the sum of W_i over `tenants`, those with planned work.
    """

    slice_ns: int
    slices: int
    rounds: int
    switching_ns: int
    waits_ns: int
    tenants: int

    @property
    def mean_wait_ns(self) -> Fraction:
        """W, the mean of W_i."""
        return Fraction(self.waits_ns, self.tenants or 1)

    @property
    def cost_ns(self) -> Fraction:
        """What is least for the length that is chosen."""
        return self.switching_ns + self.mean_wait_ns


def least(costs: Sequence[LengthCost]) -> LengthCost:
    """The length with the least cost; of equal ones the longest, which has fewer switches."""
    return min(costs, key=lambda one: (one.cost_ns, -one.slice_ns))


def reason(chosen_ns: int, costs: Sequence[LengthCost]) -> str:
    """Why a length was chosen, in words."""
    chosen = next(one for one in costs if one.slice_ns == chosen_ns)
    shown = (
        f"{_ms(chosen.slice_ns)}: {_ms(chosen.switching_ns)} of switches and "
        f"{_ms(chosen.mean_wait_ns)} of mean wait"
    )
    others = sorted(
        (one for one in costs if one is not chosen), key=lambda one: (one.cost_ns, -one.slice_ns)
    )
    if not others:
        return f"{shown}; no other length was considered"
    if not chosen.slices:
        return f"{shown}; there is nothing to plan"
    return (
        f"{shown}, {_ms(chosen.cost_ns)} together; the next best of {len(costs)} lengths is "
        f"{_ms(others[0].slice_ns)} with {_ms(others[0].cost_ns)}"
    )


def check_lengths(lengths_ns: Sequence[int]) -> None:
    """Raises `PenstockError` if there is no length to choose, or one is not above 0."""
    if not lengths_ns:
        raise PenstockError("there is no slice length to choose from", fix="name at least one")
    if min(lengths_ns) <= 0:
        raise PenstockError(
            f"a slice of {min(lengths_ns)} ns is not possible", "a slice is longer than 0 ns"
        )


def _ms(ns: float | Fraction) -> str:
    return f"{float(ns) / NS_PER_MS:.6g} ms"
