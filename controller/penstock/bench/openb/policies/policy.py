"""What a placement policy is: it rates nodes for a Pod, and the best rated node gets the Pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from penstock.bench.openb.trace import WHOLE_MILLI

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.bench.openb.arrivals import TypicalPod
    from penstock.bench.openb.cluster import Cluster
    from penstock.bench.openb.trace import Shape

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Rating = tuple[Floats, Ints]


@dataclass(frozen=True)
class Setting:
    """What a policy knows before the first Pod arrives."""

    cluster: Cluster
    typical: Sequence[TypicalPod]
    chance: np.random.Generator


class Policy(Protocol):
    """Rates nodes; a rating must hold until the node changes."""

    by_chance: ClassVar[bool]
    """Whether chance decides between equal ratings, in place of the run's order of nodes."""

    def rate(self, nodes: Ints, shape: Shape) -> Rating:
        """The rating of each of `nodes`, all of which fit the Pod; higher is better.

        The second array is the GPU for a Pod that requests a part of one.
        """


def fullest_fitting_gpu(gpu: Ints, shape: Shape) -> Ints:
    """The GPU of each row with the least free that fits a part; 0 for other Pods."""
    if not shape.is_part:
        return np.zeros(len(gpu), dtype=np.int64)
    fullest: Ints = np.where(gpu >= shape.gpu_milli, gpu, WHOLE_MILLI + 1).argmin(axis=1)
    return fullest
