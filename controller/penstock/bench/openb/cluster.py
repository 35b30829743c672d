"""What is free in the cluster, and which nodes fit a Pod. Arrays have one row for each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.bench.openb.trace import MOST_GPUS, WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.bench.openb.trace import Node, Shape

NO_GPU = -1  # in place of what is free, where a node has fewer than `MOST_GPUS`


class Cluster:
    """Free CPU, memory and GPU of each node."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.models = tuple(sorted({node.model for node in nodes}))
        self.cpu = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory = np.array([node.memory_mib for node in nodes], dtype=np.int64)
        self.model = np.array([self.models.index(node.model) for node in nodes], dtype=np.int64)
        self.gpu = np.full((len(nodes), MOST_GPUS), NO_GPU, dtype=np.int64)
        for at, node in enumerate(nodes):
            self.gpu[at, : node.gpus] = WHOLE_MILLI
        self.gpu_count = (self.gpu != NO_GPU).sum(axis=1)
        self.capacity_milli = WHOLE_MILLI * int(self.gpu_count.sum())
        self._accepted: dict[tuple[str, ...], NDArray[np.bool_]] = {}

    def __len__(self) -> int:
        return len(self.cpu)

    def accepted(self, shape: Shape) -> NDArray[np.bool_]:
        """Which nodes have a GPU model that the Pod accepts."""
        if shape.models not in self._accepted:
            known = [at for at, name in enumerate(self.models) if name in shape.models]
            self._accepted[shape.models] = (
                np.isin(self.model, known) if shape.models else np.ones(len(self), dtype=bool)
            )
        return self._accepted[shape.models]

    def fits(self, nodes: NDArray[np.int64], shape: Shape) -> NDArray[np.bool_]:
        """Which of `nodes` fit the Pod: CPU, memory, model, and GPUs with enough free each."""
        fitting = (self.cpu[nodes] >= shape.cpu_milli) & (self.memory[nodes] >= shape.memory_mib)
        if shape.gpus:
            enough = (self.gpu[nodes] >= shape.gpu_milli).sum(axis=1) >= shape.gpus
            fitting &= enough & self.accepted(shape)[nodes]
        return fitting

    def take(self, node: int, shape: Shape, gpu: int) -> tuple[int, ...]:
        """Places the Pod and returns its GPUs: `gpu` for a part of one, else idle ones."""
        if shape.is_part:
            gpus: tuple[int, ...] = (gpu,)
        else:
            idle = np.flatnonzero(self.gpu[node] == WHOLE_MILLI)
            gpus = tuple(int(at) for at in idle[: shape.gpus])
        self._change(node, shape, gpus, -1)
        return gpus

    def give_back(self, node: int, shape: Shape, gpus: tuple[int, ...]) -> None:
        """Frees what the Pod has."""
        self._change(node, shape, gpus, 1)

    def _change(self, node: int, shape: Shape, gpus: tuple[int, ...], sign: int) -> None:
        self.cpu[node] += sign * shape.cpu_milli
        self.memory[node] += sign * shape.memory_mib
        self.gpu[node, list(gpus)] += sign * shape.gpu_milli
        if len(gpus) != shape.gpus or self.cpu[node] < 0 or self.memory[node] < 0:
            raise AssertionError(f"node {node} does not fit {shape}")
        if not all(0 <= self.gpu[node, at] <= WHOLE_MILLI for at in gpus):
            raise AssertionError(f"GPUs {gpus} of node {node} do not fit {shape}")
