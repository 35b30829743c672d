"""BestFit as the FGD paper's simulator has it: the node with the least CPU and GPU left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.bench.openb.policies.policy import fullest_fitting_gpu

if TYPE_CHECKING:
    from penstock.bench.openb.policies.policy import Ints, Rating, Setting
    from penstock.bench.openb.trace import Shape

# Published: both resources weigh the same, as parts of the largest node; scores are whole percent.
MOST_CPU_MILLI = 128_000
MOST_GPU_MILLI = 8_000
WEIGHT = 0.5


class BestFit:
    """Rates nodes by what is left over once the Pod is placed."""

    by_chance: ClassVar[bool] = False

    def __init__(self, setting: Setting) -> None:
        self._cluster = setting.cluster

    def rate(self, nodes: Ints, shape: Shape) -> Rating:
        """100 for a node that has nothing left, less for others."""
        gpu = self._cluster.gpu[nodes]
        cpu_left = (self._cluster.cpu[nodes] - shape.cpu_milli) / MOST_CPU_MILLI
        gpu_left = (gpu.clip(0).sum(axis=1) - shape.total_milli) / MOST_GPU_MILLI
        score = np.floor(100 * (1 - WEIGHT * (cpu_left + gpu_left)))
        return score, fullest_fitting_gpu(gpu, shape)
