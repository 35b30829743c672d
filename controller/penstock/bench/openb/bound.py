"""An upper bound on the GPU that any policy can allocate, with any number of migrations.

Parts of a GPU leave remainders that nothing fits into. `worth` prices that: no GPU holds more than
1 in worth, so all of them together hold at most their number, and what a placed part allocates
differs from its worth by `size - worth`. The bound adds these differences for the Pods that were
placed when requests for the whole capacity had arrived, and of those that came later the
differences above 0. It holds for each policy that placed the same Pods until then (nothing is
evicted), and leaves CPU and memory out of account. That it holds for any prices is weak duality of
linear programs.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.bench.openb.trace import WHOLE_MILLI
from penstock.bench.openb.worth import worth_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.bench.openb.trace import Shape


def most_allocated_milli(
    capacity_milli: int, placed: Iterable[Shape], later: Iterable[Shape]
) -> int:
    """The bound: `placed` must stay, any of `later` can be added."""
    parts = Counter(shape.gpu_milli for shape in placed if shape.is_part)
    worth = worth_table(parts)
    bound = float(capacity_milli)
    for milli, count in parts.items():
        bound += count * (milli - WHOLE_MILLI * worth[milli])
    for shape in later:
        if shape.is_part:
            bound += max(0.0, shape.gpu_milli - WHOLE_MILLI * float(worth[shape.gpu_milli]))
    return min(capacity_milli, int(bound))
