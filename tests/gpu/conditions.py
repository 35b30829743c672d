"""Under which conditions a compute quota was measured, and which two of them came together."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gpu.load import Work

Pair = tuple[str, str]


def pairs_of(quota: float, work: Work, tenants: int = 1) -> frozenset[Pair]:
    """Every pair of quota, kernel, manner of launch and neighbours on the device, in words."""
    kernel = f"{work.kernel_us:g} us" if work.kernel == "spin" else work.kernel
    sharing = "alone" if work.processes == 1 else f"{work.processes} processes"
    if work.threads > 1:
        sharing = f"{work.threads} threads"
    if tenants > 1:
        sharing = f"{tenants} tenants"
    return frozenset(itertools.combinations((f"{quota:g} %", kernel, work.launch, sharing), 2))
