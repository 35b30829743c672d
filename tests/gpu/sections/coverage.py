"""More cells of the compute quota, while there is time: every pair of two conditions first.

A cell is a quota, a kernel, a manner of launch, and the neighbours on the device. Of some 400 cells
the next is always the one with the most pairs that no cell had yet. Once every pair was measured,
all cells of the run are repeated, which tells chance results from lasting ones.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.gpu.budget import MORE, Check
from tests.gpu.conditions import pairs_of
from tests.gpu.load import Work
from tests.gpu.preflight import needs_sharing
from tests.gpu.sections.compute import CELLS, NODES, measure_cell, measure_tenants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.conditions import Pair

QUOTAS = (5, 10, 30, 50, 70, 90, 95)
KERNELS = (("spin", 20), ("spin", 200), ("spin", 2000), ("spin", 20000), ("sweep", 200),
           ("multiply", 200))  # fmt: skip
LAUNCHES = ("plain", "graph", "waited for")
SHARING = ("alone", "4 threads", "4 processes", "2 tenants", "3 tenants", "4 tenants")
MOST_WAITING = 50  # percent that a waiting program is sure to ask for
OTHERS_PART = 0.9  # of what one tenant leaves: the device is not given away whole


@dataclass(frozen=True)
class Cell:
    """One combination."""

    quota: float
    kernel: str
    kernel_us: float
    launch: str
    sharing: str

    def pairs(self) -> frozenset[Pair]:
        """Of its conditions, every two."""
        return pairs_of(self.quota, self.work(), len(self.granted()))

    def work(self) -> Work:
        """Of each tenant."""
        return Work(
            kernel=self.kernel,
            kernel_us=self.kernel_us,
            nodes=NODES if self.launch == "graph" else 0,
            processes=4 if self.sharing == "4 processes" else 1,
            threads=4 if self.sharing == "4 threads" else 1,
            sync_every=1 if self.launch == "waited for" else 0,
            blocks=self.launch == "blocking",
        )

    def granted(self) -> list[float]:
        """Percent of each tenant; the first has the quota, the others like parts of the rest."""
        others = int(self.sharing[0]) - 1 if self.sharing.endswith("tenants") else 0
        rest = round((100 - self.quota) * OTHERS_PART / others, 1) if others else 0
        return [self.quota, *[rest] * others]

    def check(self, number: int) -> Check:
        """`number`: how often this run had it before, counted from 1."""
        again = f", run {number}" if number > 1 else ""
        granted, work = self.granted(), self.work()
        if len(granted) == 1:
            run = partial(measure_cell, self.quota, work)
            words = f"{self.quota:g} %: {work}"
        else:
            run = partial(measure_tenants, "strict", granted, [work] * len(granted))
            words = f"{' + '.join(f'{one:g}' for one in granted)} %: {work} each"
        requires = None if self.sharing in ("alone", "4 threads") else needs_sharing
        return Check(MORE, words + again, run, 8 + len(granted), 90, requires, self.pairs())


def cells() -> list[Cell]:
    """All combinations that say something."""
    every = itertools.product(QUOTAS, KERNELS, LAUNCHES, SHARING)
    made = (Cell(quota, kernel, us, launch, who) for quota, (kernel, us), launch, who in every)
    return [cell for cell in made if is_telling(cell)]


def is_telling(cell: Cell) -> bool:
    """Whether its share, and the trace of it, would be the gate's doing.

    A graph of wide kernels writes one segment of the trace over and over. A program that waits for
    each kernel asks for no more than it can: how much that is differs from one host to the next.
    """
    if cell.launch == "graph":
        return cell.kernel == "spin"
    if cell.launch == "waited for":
        return cell.quota <= MOST_WAITING and not cell.sharing.endswith("tenants")
    return True


def had() -> list[Cell]:
    """Those that the section `compute` holds already."""
    found = []
    for quota, work in CELLS:
        sharing = "4 processes" if work.processes == 4 else "alone"
        if work.threads == 4:
            sharing = "4 threads"
        found.append(Cell(quota, work.kernel, work.kernel_us, work.launch, sharing))
    return found


def all_pairs() -> frozenset[Pair]:
    """That some cell has."""
    return frozenset[tuple[str, str]]().union(*(cell.pairs() for cell in cells()))


def more_checks() -> Iterator[Check]:
    """Without end: each cell once, the most telling first, then those same ones again."""
    chosen, left = had(), cells()
    seen = set().union(*(cell.pairs() for cell in chosen))
    missing = set(all_pairs() - seen)
    while missing:
        best = max(left, key=lambda cell: len(cell.pairs() & missing))
        missing -= best.pairs()
        left.remove(best)
        chosen.append(best)
        yield best.check(1)
    for number in itertools.count(2):
        for cell in chosen:
            yield cell.check(number)
