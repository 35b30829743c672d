"""Sums of what several cards give, with the same bits on all cards: all add in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def added(rows: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """A new tensor, the sum of all rows."""
    total = torch.empty_like(rows[0])
    add_up(rows, total)
    return total


def add_up(rows: torch.Tensor | Sequence[torch.Tensor], total: torch.Tensor) -> None:
    """Writes the sum of all rows, which may be on the CPU, to `total`, in the order of the rows."""
    if len(rows) == 1:
        total.copy_(rows[0])
    elif total.device != rows[0].device:
        total.copy_(added(rows))
    else:
        torch.add(rows[0], rows[1], out=total)
        for one in rows[2:]:
            total += one
