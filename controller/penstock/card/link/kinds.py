"""Kinds: the numbers and names of the frames of a link's user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.card.link.frame import FIRST_KIND, LAST_KIND

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kinds:
    """The kinds that a link's user has."""

    def __init__(self, names: Mapping[int, str]) -> None:
        if not all(FIRST_KIND <= kind <= LAST_KIND for kind in names):
            raise ValueError(f"kinds of frames are numbered from {FIRST_KIND} to {LAST_KIND}")
        self._names = dict(names)

    def check(self, kind: int) -> None:
        """Raises ValueError if there is no such kind."""
        if kind not in self._names:
            raise ValueError(f"there is no kind {kind} of frames")

    def is_known(self, kind: int) -> bool:
        """Whether there is such a kind."""
        return kind in self._names

    def name(self, kind: int) -> str:
        """What people call the kind."""
        return self._names.get(kind, f"kind {kind}")
