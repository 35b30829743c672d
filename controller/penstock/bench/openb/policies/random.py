"""Random: any node that fits, and any of its GPUs that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from penstock.bench.openb.policies.policy import Ints, Rating, Setting
    from penstock.bench.openb.trace import Shape


class Random:
    """Rates all nodes the same."""

    by_chance: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        self._cluster = setting.cluster
        self._chance = setting.chance

    def rate(self, nodes: Ints, shape: Shape) -> Rating:
        """0 for each node, and a random GPU that fits."""
        gpu = self._cluster.gpu[nodes]
        of_gpus = np.where(gpu >= shape.gpu_milli, self._chance.random(gpu.shape), -1.0)
        return np.zeros(len(nodes)), of_gpus.argmax(axis=1)
