"""Environment of a rank: how a program finds out that it is one of several that train together."""

from __future__ import annotations

import os
from dataclasses import dataclass

VARIABLE = "PENSTOCK_RANK"


@dataclass(frozen=True)
class Place:
    """One rank of a job.

    Attributes:
        rank: From 0.
        size: How many there are.
        store: HOST:PORT, where the ranks find each other.
        seed: Of all ranks' random numbers, until the program sets its own.
        weights: What each rank gets of a batch before speeds are measured.
    """

    rank: int
    size: int
    store: str
    seed: int
    weights: tuple[float, ...]

    def __str__(self) -> str:
        weights = ":".join(f"{one:g}" for one in self.weights)
        return f"{self.rank}/{self.size}@{self.store}@{self.seed}@{weights}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """The place that `str` wrote. Raises `PenstockError` if it is none."""
        try:
            numbers, store, seed, weights = text.split("@")
            rank, size = map(int, numbers.split("/"))
            found = cls(rank, size, store, int(seed), tuple(map(float, weights.split(":"))))
        except ValueError:
            found = None
        if found is None or not 0 <= found.rank < found.size == len(found.weights):
            from penstock.model import PenstockError

            raise PenstockError(
                f"invalid ${VARIABLE}: {text[:60]!r}", "it is not RANK/SIZE@STORE@SEED@WEIGHTS",
                "unset it, or start the program as a rank of a job",
            )  # fmt: skip
        return found


def place() -> Place | None:
    """This process's place; None in a program that is no rank. Raises `PenstockError`."""
    text = os.environ.get(VARIABLE)
    return Place.parse(text) if text else None
