"""What a part of a GPU is worth: the dual prices of the cutting-stock problem of a list's Pods.

To serve the Pods that request a part of a GPU with as few GPUs as possible is a cutting-stock
problem. Its dual gives each part a worth, in GPUs: 0.81 of a GPU is worth a whole one if nothing
comes to fill the other 0.19. No set of parts that fits on one GPU is worth more than 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from penstock.bench.openb.trace import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from penstock.bench.openb.arrivals import TypicalPod

TOLERANCE = 1e-9
MOST_STEPS = 10_000  # far beyond what any list takes


def worth_of_typical(typical: Iterable[TypicalPod]) -> NDArray[np.float64]:
    """`worth_table` of the typical Pods' parts."""
    demand: dict[int, float] = {}
    for one in typical:
        if one.shape.is_part:
            milli = one.shape.gpu_milli
            demand[milli] = demand.get(milli, 0.0) + one.frequency
    return worth_table(demand)


def worth_table(demand: Mapping[int, float]) -> NDArray[np.float64]:
    """What 0 to 1000 thousandths of a GPU are worth, given how much of each part is requested.

    The simplex method with generated columns (Gilmore and Gomory, 1961): a basis of patterns, each
    a way to cut one GPU into parts, is improved until no pattern is worth more than a GPU.
    """
    sizes = np.array(sorted(size for size, wanted in demand.items() if wanted > 0), dtype=int)
    wanted = np.array([demand[int(size)] for size in sizes], dtype=float)
    basis = np.diag(WHOLE_MILLI // sizes).astype(float)  # columns: patterns of one size each
    for _ in range(MOST_STEPS):
        inverse = np.linalg.inv(basis)
        prices = inverse.sum(axis=0)
        table, pattern = _best_filling(sizes, prices)
        if table[-1] <= 1 + TOLERANCE:
            break
        used, entering = inverse @ wanted, inverse @ pattern
        ratios = np.where(entering > TOLERANCE, used / np.maximum(entering, TOLERANCE), np.inf)
        basis[:, int(ratios.argmin())] = pattern
    table[-1] = 1.0
    return table


def _best_filling(
    sizes: NDArray[np.int64], prices: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The best worth of parts that fit into 0 to 1000 thousandths, and the parts for 1000."""
    unit = math.gcd(WHOLE_MILLI, *(int(size) for size in sizes))
    units = [int(size) // unit for size in sizes]
    best = [0.0] * (WHOLE_MILLI // unit + 1)
    last = [-1] * len(best)  # the part that fills up to here; -1: nothing more fits
    for room in range(1, len(best)):
        best[room] = best[room - 1]
        for at, size in enumerate(units):
            if size <= room and best[room - size] + prices[at] > best[room] + TOLERANCE:
                best[room], last[room] = best[room - size] + prices[at], at
    pattern = np.zeros(len(sizes))
    room = len(best) - 1
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            pattern[last[room]] += 1
            room -= units[last[room]]
    return np.array(best)[np.arange(WHOLE_MILLI + 1) // unit], pattern
