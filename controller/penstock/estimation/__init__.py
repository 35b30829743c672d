"""How much compute and memory a model needs: `penstock.estimate`, `penstock pool estimate`."""

from penstock.estimation.estimate import estimate
from penstock.estimation.report import Estimate

__all__ = ["Estimate", "estimate"]
