"""Fragmentation of nodes as the FGD paper defines it (Weng et al., USENIX ATC 2023).

For one typical Pod, a node's free GPU is fragmented as far as that Pod cannot use it: all of it if
the node does not fit the Pod, else what lies on GPUs with less free than the Pod needs of one. A
Pod without GPU can use none of it. The node's fragmentation is the mean over typical Pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.bench.openb.arrivals import TypicalPod

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Fragmentation:
    """Computes fragmentation in thousandths of a GPU, for many nodes at once.

    Typical Pods with the same GPU request form a group, since they can use the same GPUs; how much
    of a group fits depends on a node's free CPU and model alone, and is looked up.
    """

    def __init__(self, typical: Sequence[TypicalPod], models: Sequence[str]) -> None:
        wanted = [one for one in typical if one.shape.gpus]
        groups = sorted({(one.shape.gpu_milli, one.shape.gpus) for one in wanted})
        self._milli = np.array(sorted({milli for milli, _ in groups}), dtype=np.int64)
        self._group_milli = np.searchsorted(self._milli, [milli for milli, _ in groups])
        self._group_gpus = np.array([gpus for _, gpus in groups], dtype=np.int64)
        self._cpu = np.array(sorted({one.shape.cpu_milli for one in wanted}), dtype=np.int64)
        # By model, by how many of `_cpu` the node's free CPU reaches, by group.
        self._fitting = np.zeros((len(models), len(self._cpu) + 1, len(groups)))
        for one in wanted:
            shape = one.shape
            reached = int(np.searchsorted(self._cpu, shape.cpu_milli)) + 1
            group = groups.index((shape.gpu_milli, shape.gpus))
            for model, name in enumerate(models):
                if not shape.models or name in shape.models:
                    self._fitting[model, reached:, group] += one.frequency

    def of_nodes(self, cpu: Ints, gpu: Ints, model: Ints) -> Floats:
        """The fragmentation of nodes with this much free; `gpu` has a row for each node."""
        enough = gpu[:, :, None] >= self._milli
        usable = (gpu[:, :, None] * enough).sum(axis=1)
        return self._unusable(gpu, usable, enough.sum(axis=1), self._fit(cpu, model))

    def after_each_gpu(self, cpu: Ints, gpu: Ints, model: Ints, milli: int) -> Floats:
        """The fragmentation once `milli` is taken from each of a node's GPUs in turn."""
        left = gpu - milli
        before, after = gpu[:, :, None] >= self._milli, left[:, :, None] >= self._milli
        usable_before, usable_after = gpu[:, :, None] * before, left[:, :, None] * after
        usable = usable_before.sum(axis=1)[:, None] - usable_before + usable_after
        count = before.sum(axis=1)[:, None] - before + after
        fit = self._fit(cpu, model)[:, None]
        return self._unusable(gpu[:, None], usable, count, fit) - milli

    def _fit(self, cpu: Ints, model: Ints) -> Floats:
        fitting: Floats = self._fitting[model, np.searchsorted(self._cpu, cpu, side="right")]
        return fitting

    def _unusable(self, gpu: Ints, usable: Ints, count: Ints, fit: Floats) -> Floats:
        fits = count[..., self._group_milli] >= self._group_gpus
        used = (usable[..., self._group_milli] * fits * fit).sum(axis=-1)
        unusable: Floats = gpu.clip(0).sum(axis=-1) - used
        return unusable
