"""Arrangements: random orders that depend on a seed and on names, and on nothing else."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


def arranged(ones: Iterable[T], seed: int, name: Callable[[T], tuple[str, ...]]) -> list[T]:
    """`ones` in a random order: by a digest of the seed and each one's name.

    The order in which they are given does not matter, nor does Python's version or the machine; who
    comes or goes changes nothing between the others.
    """

    def digest(one: T) -> tuple[bytes, tuple[str, ...]]:
        words = "\0".join((str(seed), *name(one)))
        return blake2b(words.encode("utf-8", "surrogateescape"), digest_size=16).digest(), name(one)

    return sorted(ones, key=digest)
