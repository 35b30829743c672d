"""The protocol of policies: a key by which waiting tenants are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.scheduling.slices.standing import Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.scheduling.slices.demand import Demand

Key: TypeAlias = tuple[float, ...]
Rank: TypeAlias = Callable[[Standing, int], Key]


class Policy(Protocol):
    """Decides who gets the next slice: of all that wait, the one with the smallest key.

    `in_rounds`: each with work left gets one slice a round. The key begins with the standing's
    round, and what follows stays the same for the whole window. `ages`: the key of one that waits
    changes with time alone. Otherwise it changes with the slices that it is given, or not at all.
    """

    name: str
    in_rounds: bool
    ages: bool

    def rank(self, arranged: Sequence[Demand], /) -> Rank:
        """The key of a standing at a time (ns from the window's start), for one window.

        `arranged`: the demands that are known when the window begins, in their random order; a
        standing's `place` is an index into it, or beyond it if the demand is not among them. The
        place breaks ties between equal keys.
        """
        ...
