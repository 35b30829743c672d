"""Packing: what Penstock's placement on Kubernetes does today (`scheduling/placement/fit.py`).

The fullest node by GPU, in eleven steps as the extender's scores have them, and on it the fullest
GPU that fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.bench.openb.policies.policy import fullest_fitting_gpu
from penstock.bench.openb.trace import WHOLE_MILLI

if TYPE_CHECKING:
    from penstock.bench.openb.policies.policy import Ints, Rating, Setting
    from penstock.bench.openb.trace import Shape

BEST_SCORE = 10  # as in the extender


class Packing:
    """Rates nodes by how full their GPUs are.

    The extender scales its scores to the range of the nodes in question; here the range is that of
    empty and full nodes, which decides the same but for rounding.
    """

    by_chance: ClassVar[bool] = False

    def __init__(self, setting: Setting) -> None:
        self._cluster = setting.cluster

    def rate(self, nodes: Ints, shape: Shape) -> Rating:
        """0 for an empty node to 10 for a full one."""
        gpu = self._cluster.gpu[nodes]
        free = gpu.clip(0).sum(axis=1) / (WHOLE_MILLI * self._cluster.gpu_count[nodes])
        return np.round(BEST_SCORE * (1 - free)), fullest_fitting_gpu(gpu, shape)
