"""Random numbers of ranks: the same where batches are drawn, and otherwise each its own.

Rank 0 has those of the program on one machine. The others draw batches with a copy of rank 0's
state, and have other numbers for the rest: dropout of one card's samples is not that of another's.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.training.pytorch.ranks import Ranks

State: TypeAlias = "tuple[torch.Tensor, Any, Any]"


def get() -> State:
    """The states of torch's, Python's and, if the program uses it, NumPy's numbers."""
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()


def put(state: State) -> None:
    """Sets what `get` returned."""
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    numpy = sys.modules.get("numpy")
    if numpy is not None and state[2] is not None:
        numpy.random.set_state(state[2])


class Drawing:
    """The random numbers by which a loop draws its batches."""

    def __init__(self, ranks: Ranks) -> None:
        """Takes rank 0's at this moment; all ranks do so at the same line of the program."""
        self._is_first = ranks.rank == 0
        self._is_here = False
        # The bytes are of a rank of this job, which runs the same program.
        first = ranks.first_bytes(pickle.dumps(get()) if self._is_first else b"")
        self._state: State = pickle.loads(first)  # noqa: S301 - see above
        if not self._is_first:
            seed = int(torch.randint(1 << 60, (), generator=_generator(self._state)).item())
            torch.manual_seed(seed + ranks.rank)
            random.seed(seed + ranks.rank)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed((seed + ranks.rank) & 0xFFFFFFFF)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """What is inside draws; it may be entered again inside."""
        if self._is_first or self._is_here:
            yield
            return
        own = get()
        put(self._state)
        self._is_here = True
        try:
            yield
        finally:
            self._is_here = False
            self._state = get()
            put(own)


def _generator(state: State) -> torch.Generator:
    made = torch.Generator()
    made.set_state(state[0])
    return made
