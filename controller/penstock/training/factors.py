"""Factors that make gradients of parts of a batch add up to the gradient of the whole batch.

A loss is a combination of sums and means over samples: a chain of operations leads from the loss to
each of them, through constants. Every card has such chains for its own samples; what differs
between cards of unlike numbers of samples depends on the batch, and what does not is the program's.

- a *sum* over samples is added up over the cards as it is;
- a *mean* over n samples counts n / N on a card, where N is the sum of all cards' n;
- a constant that differs between the cards is a number of things of the batch, by which the program
  divides a sum: it becomes the number in the whole batch;
- a term that does not differ (a penalty on parameters) counts on one card.

Example: Two cards with 6 and 2 samples, `cross_entropy(...) / 4` with padded words, of which 50 and
10 count: the chain is 1/4 times a mean over 50 and 10. The factors are 50/60 and 10/60.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Form: TypeAlias = "tuple[tuple[object, ...], ...]"
FLOAT32 = 1e-5  # relative: constants that differ by less are the same


@dataclass(frozen=True)
class Reduction:
    """A sum or mean on a chain. `count`: elements that go into each result.

    `is_counted`: whether it tells how many count (a loss that ignores padding), so that this need
    not be in proportion to the samples.
    """

    is_mean: bool
    count: float
    is_counted: bool = False


@dataclass(frozen=True)
class Chain:
    """From the loss to one of its terms: the outermost reduction first.

    `constant`: what all constants on the way multiply it by. `end`: a digest of what is behind the
    last reduction, which is the same on two cards if it does not depend on the batch; `name` is
    what torch calls it.
    """

    constant: float
    reductions: tuple[Reduction, ...]
    end: int
    name: str


@dataclass(frozen=True)
class Part:
    """A card's part of a batch. `ran`: samples that it computed; `rows`: those that count.

    A card without samples computes one that does not count.
    """

    rows: int
    ran: int
    chains: tuple[Chain, ...]


@dataclass(frozen=True)
class Factor:
    """Of one chain, by rank.

    `reduction`: which of its reductions takes them; None: the chain does not depend on the batch.
    """

    reduction: int | None
    factors: tuple[float, ...]


class UnclearLossError(Exception):
    """A loss whose gradient for the whole batch cannot be made from those of its parts."""


@dataclass(frozen=True)
class _Class:
    """What a chain turned out to be.

    `reduction`: which of its reductions is over samples; `is_count`: whether its constant is a
    number of things in the batch.
    """

    reduction: int | None
    is_count: bool


@dataclass
class Learned:
    """What was learned of losses of each form, the first time that the cards' parts differed."""

    classes: dict[Form, list[_Class]] = field(default_factory=dict)


def form_of(chains: Sequence[Chain]) -> Form:
    """What two losses have in common that the same lines of a program compute."""
    return tuple((one.name, *(r.is_mean for r in one.reductions)) for one in chains)


def factors_of(parts: Sequence[Part], learned: Learned) -> list[Factor]:
    """The factors of each chain, for all cards.

    Raises:
        UnclearLossError: with the reason, for the user.
    """
    form = form_of(parts[0].chains)
    real = [i for i, part in enumerate(parts) if part.rows]
    if len(real) == 1:  # it has the whole batch
        alone = tuple(float(i == real[0]) for i in range(len(parts)))
        return [Factor(None if not one.reductions else 0, alone) for one in parts[0].chains]
    if form not in learned.classes:
        if len({part.ran for part in parts}) == 1:
            raise UnclearLossError("all cards have as many samples when its form is first seen")
        learned.classes[form] = [_class(k, parts) for k in range(len(parts[0].chains))]
    return [_factor(k, one, parts, real) for k, one in enumerate(learned.classes[form])]


def _class(k: int, parts: Sequence[Part]) -> _Class:
    chains = [part.chains[k] for part in parts]
    pairs = [(a, b) for a in range(len(parts)) for b in range(a) if parts[a].ran != parts[b].ran]
    for j in range(len(chains[0].reductions)):
        counts = [one.reductions[j].count for one in chains]
        if chains[0].reductions[j].is_counted or any(counts[a] != counts[b] for a, b in pairs):
            return _Class(j, _differ([one.constant for one in chains]))
    if any(chains[a].end != chains[b].end for a, b in pairs):
        raise UnclearLossError(
            f"it is not a sum of means and sums over samples: torch has {chains[0].name} there"
        )
    return _Class(None, is_count=False)


def _factor(k: int, found: _Class, parts: Sequence[Part], real: Sequence[int]) -> Factor:
    if found.reduction is None:
        return Factor(None, tuple(float(i == real[0]) for i in range(len(parts))))
    chains = [part.chains[k] for part in parts]
    reductions = [one.reductions[found.reduction] for one in chains]
    weights = [0.0] * len(parts)
    if reductions[0].is_mean:
        total = sum(reductions[i].count for i in real)
        for i in real:
            _check_padding(reductions, parts, real, chains[i].name)
            weights[i] = reductions[i].count / total if total else 0.0
    else:
        for i in real:
            weights[i] = 1.0
    if found.is_count or _differ([chains[i].constant for i in real]):
        whole = _whole_constant(chains, parts, real, is_mean=reductions[0].is_mean)
        for i in real:
            weights[i] *= whole / chains[i].constant if chains[i].constant else 0.0
    return Factor(found.reduction, tuple(weights))


def _differ(constants: Sequence[float]) -> bool:
    return any(not math.isclose(one, constants[0], rel_tol=FLOAT32) for one in constants)


def _check_padding(
    reductions: Sequence[Reduction], parts: Sequence[Part], real: Sequence[int], name: str
) -> None:
    each = [reductions[i].count / parts[i].ran for i in real]
    if not reductions[0].is_counted and any(one != each[0] for one in each):
        raise UnclearLossError(
            f"the samples have {each[0]:g} elements on one card and "
            f"{next(one for one in each if one != each[0]):g} on another, and {name} takes the "
            "mean of them all: padding would count"
        )


def _whole_constant(
    chains: Sequence[Chain], parts: Sequence[Part], real: Sequence[int], *, is_mean: bool
) -> float:
    """The constant that the program would have with the whole batch."""
    constants = [chains[i].constant for i in real]
    if not is_mean:  # a sum is divided by a number of things, which adds up
        inverse = sum(1 / one for one in constants if one)
        return 1 / inverse if inverse else 0.0
    rows = sum(parts[i].rows for i in real)
    each = [one / parts[i].ran for one, i in zip(constants, real, strict=True)]
    if all(math.isclose(one, each[0], rel_tol=FLOAT32) for one in each):
        return each[0] * rows
    raise UnclearLossError(
        "a mean is multiplied by a number that differs between the cards "
        f"({', '.join(f'{one:g}' for one in constants[:4])})"
    )
