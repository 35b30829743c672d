"""Usable: the node whose usable GPU capacity shrinks least beyond what the Pod itself is worth.

A node's usable capacity, in GPUs, is what the free parts of its GPUs are worth (`worth`), and at
most what its free CPU feeds at the typical Pods' mean CPU for each GPU. A Pod's loss is what the
node loses of it beyond the Pod's own worth: 0 where the Pod strands nothing. Among nodes with equal
loss the fullest gets the Pod. The policy has no constants to tune.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.bench.openb.trace import MOST_GPUS, WHOLE_MILLI
from penstock.bench.openb.worth import worth_of_typical

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.bench.openb.arrivals import TypicalPod
    from penstock.bench.openb.policies.policy import Floats, Ints, Rating, Setting
    from penstock.bench.openb.trace import Shape

DIGITS = 6  # losses that differ by less are equal: they are sums of rounded numbers
TIE = 10.0 ** -(DIGITS + 1)  # of the tie-breaker, which is below 1


class Usable:
    """Rates nodes by the loss of usable capacity."""

    by_chance: ClassVar[bool] = False

    def __init__(self, setting: Setting) -> None:
        self._cluster = setting.cluster
        self._worth = worth_of_typical(setting.typical)
        self._cpu_per_gpu = cpu_milli_per_gpu(setting.typical)

    def rate(self, nodes: Ints, shape: Shape) -> Rating:
        """The loss with its sign changed; in its last digits how full the node becomes."""
        cpu, gpu = self._cluster.cpu[nodes], self._cluster.gpu[nodes].clip(0)
        of_gpus = self._worth[gpu]
        free = of_gpus.sum(axis=1)
        if shape.is_part:
            own = self._worth[shape.gpu_milli]
            left = gpu - shape.gpu_milli
            shrinks = np.where(left >= 0, of_gpus - self._worth[left], np.inf)
            # Of GPUs that lose equally, the fullest.
            chosen = (np.round(shrinks, DIGITS) + TIE * gpu / WHOLE_MILLI).argmin(axis=1)
            taken = shrinks[np.arange(len(nodes)), chosen]
        else:
            own = float(shape.gpus)
            chosen = np.zeros(len(nodes), dtype=np.int64)
            taken = np.full(len(nodes), own)
        loss = self._usable(cpu, free) - self._usable(cpu - shape.cpu_milli, free - taken) - own
        becomes_free = (gpu.sum(axis=1) - shape.total_milli) / (WHOLE_MILLI * MOST_GPUS)
        return -np.round(loss, DIGITS) - TIE * becomes_free, chosen

    def _usable(self, cpu: Ints, worth: Floats) -> Floats:
        usable: Floats = np.minimum(worth, cpu / self._cpu_per_gpu)
        return usable


def cpu_milli_per_gpu(typical: Iterable[TypicalPod]) -> float:
    """The mean CPU for each GPU of the typical Pods with GPU; tiny if there is none such."""
    wanted = [one for one in typical if one.shape.gpus]
    cpu = sum(one.frequency * one.shape.cpu_milli for one in wanted)
    gpus = sum(one.frequency * one.shape.total_milli for one in wanted) / WHOLE_MILLI
    return max(cpu / gpus, TIE) if gpus else TIE
