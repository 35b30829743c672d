"""Probe: how fast a card is at what programs do most, products of matrices and convolutions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.adapters import Adapter

    Work = Callable[[], object]

_LEAST_S = 0.005  # one repetition lasts so long at least, or starting it would be measured
_LARGEST = 4096  # rows of a matrix
_MOST_IMAGES = 1024
_CHANNELS, _PIXELS = 32, 32
_DTYPE = torch.float32  # the default is the program's


def operations_per_second(adapter: Adapter, probe_s: float) -> tuple[float, float]:
    """Multiplications a second in products and in convolutions, each measured for `probe_s`."""
    return (
        _rate(adapter, probe_s, lambda n: _product(adapter, n), 128, _LARGEST),
        _rate(adapter, probe_s, lambda n: _convolution(adapter, n), 1, _MOST_IMAGES),
    )


def _rate(
    adapter: Adapter, probe_s: float, make: Callable[[int], tuple[Work, float]],
    size: int, largest: int,
) -> float:  # fmt: skip
    """`make` gives work of a size, and how many multiplications it is."""
    work, multiplications = make(size)
    _seconds(adapter, work, 1)  # the first use of a kernel loads it
    while _seconds(adapter, work, 1) < _LEAST_S and size < largest:
        size *= 2
        work, multiplications = make(size)
        _seconds(adapter, work, 1)
    count, spent_s = 0, 0.0
    while spent_s < probe_s:
        spent_s += _seconds(adapter, work, 2)
        count += 2
    return count * multiplications / spent_s


def _seconds(adapter: Adapter, work: Work, count: int) -> float:
    adapter.synchronize()
    begin_s = time.monotonic()
    for _ in range(count):
        work()
    adapter.synchronize()
    return max(time.monotonic() - begin_s, 1e-9)


def _product(adapter: Adapter, rows: int) -> tuple[Work, float]:
    matrix = torch.ones(rows, rows, dtype=_DTYPE, device=adapter.device)
    return lambda: torch.mm(matrix, matrix), float(rows) ** 3


def _convolution(adapter: Adapter, images: int) -> tuple[Work, float]:
    batch = torch.ones(images, _CHANNELS, _PIXELS, _PIXELS, dtype=_DTYPE, device=adapter.device)
    weight = torch.ones(_CHANNELS, _CHANNELS, 3, 3, dtype=_DTYPE, device=adapter.device)
    multiplications = images * _PIXELS**2 * _CHANNELS**2 * 9
    return lambda: torch.conv2d(batch, weight, padding=1), float(multiplications)
