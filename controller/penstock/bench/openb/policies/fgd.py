"""FGD: the node and GPU whose fragmentation grows least (Weng et al., USENIX ATC 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.bench.openb.fragmentation import Fragmentation
from penstock.bench.openb.trace import WHOLE_MILLI

if TYPE_CHECKING:
    from penstock.bench.openb.policies.policy import Floats, Ints, Rating, Setting
    from penstock.bench.openb.trace import Shape


class Fgd:
    """Rates nodes by the decrease of their fragmentation."""

    by_chance: ClassVar[bool] = False

    def __init__(self, setting: Setting) -> None:
        self._cluster = setting.cluster
        self._fragmentation = Fragmentation(setting.typical, setting.cluster.models)

    def rate(self, nodes: Ints, shape: Shape) -> Rating:
        """The published score, a whole number from 0 to 100: 50 if nothing changes."""
        cluster = self._cluster
        cpu, gpu, model = cluster.cpu[nodes], cluster.gpu[nodes], cluster.model[nodes]
        before = self._fragmentation.of_nodes(cpu, gpu, model)
        cpu_left = cpu - shape.cpu_milli
        if shape.is_part:
            after = self._fragmentation.after_each_gpu(cpu_left, gpu, model, shape.gpu_milli)
            scores = np.where(gpu >= shape.gpu_milli, _score(before[:, None] - after), -1.0)
            best = scores.argmax(axis=1)
            return scores[np.arange(len(nodes)), best], best
        after = self._fragmentation.of_nodes(cpu_left, _without_idle(gpu, shape.gpus), model)
        return _score(before - after), np.zeros(len(nodes), dtype=np.int64)


def _score(decrease: Floats) -> Floats:
    """The published rounding matters: equal scores leave the choice to the order of nodes."""
    score: Floats = np.floor(100 / (1 + np.exp(-decrease / WHOLE_MILLI)))
    return score


def _without_idle(gpu: Ints, count: int) -> Ints:
    """What is free once the first `count` idle GPUs are taken."""
    idle = gpu == WHOLE_MILLI
    return np.where(idle & (idle.cumsum(axis=1) <= count), 0, gpu)
