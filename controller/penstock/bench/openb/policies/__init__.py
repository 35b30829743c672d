"""The policies that a replay compares: one module for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.bench.openb.policies.best_fit import BestFit
from penstock.bench.openb.policies.fgd import Fgd
from penstock.bench.openb.policies.packing import Packing
from penstock.bench.openb.policies.random import Random
from penstock.bench.openb.policies.usable import Usable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.openb.policies.policy import Policy, Setting

POLICIES: dict[str, Callable[[Setting], Policy]] = {
    "random": Random,
    "best-fit": BestFit,
    "fgd": Fgd,
    "packing": Packing,
    "usable": Usable,
}
