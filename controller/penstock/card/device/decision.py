"""`Decision`: how an operation is split over the cards, as a rule says it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from penstock.card.layout import PARTIAL, WHOLE, Cut, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.card.device.inference import Meta
    from penstock.card.device.operand import Operand

# How a call uses an argument or leaves a result: whole, as partial sums, or each card its rows.
Use = Union[Layout, Cut]  # noqa: UP007 - Layout | Cut is evaluated at run time before Python 3.10


@dataclass
class Question:
    """What a rule decides about: an operation, its arguments and its results.

    Attributes:
        name: The operation without overload, such as "aten::add".
        full_name: The same with the overload, such as "aten::add.Tensor".
        named: Its arguments by name, also those that were left out; tensors are `Operand`s.
        operands: Its tensor arguments in their order.
        results: Its tensor results; None for those that are no tensor.
        speeds: What the cards are worth to each other.
        is_random: Whether each call brings a seed.
        target_count: How many of the tensor arguments, the last ones, are given as `out`.
        least_work: How many multiplications are worth to be split if nothing is split yet.
        is_sharding: Whether large sums are kept in parts once they are added up.
    """

    name: str
    full_name: str
    named: dict[str, Any]
    operands: list[Operand]
    results: list[Meta | None]
    speeds: tuple[float, ...]
    is_random: bool = False
    least_work: float = 0.0
    target_count: int = 0
    is_sharding: bool = False

    @property
    def cards(self) -> int:
        """How many cards there are."""
        return len(self.speeds)


@dataclass
class Decision:
    """How an operation is split.

    Attributes:
        uses: How it uses each tensor argument; arguments that it changes are left like this.
        results: How each tensor result lies on the cards.
        replaced: Arguments that differ by card: name -> the value for each card.
        name: Another operation that the cards call instead, if set.
    """

    uses: Sequence[Use]
    results: Sequence[Use]
    replaced: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    name: str | None = None

    @property
    def is_split(self) -> bool:
        """Whether each card does a part of the work."""
        return any(use is not WHOLE for use in (*self.uses, *self.results))


def all_whole(question: Question) -> Decision:
    """Every card does everything: correct for all operations."""
    return Decision([WHOLE] * len(question.operands), [WHOLE] * len(question.results))


__all__ = ["PARTIAL", "WHOLE", "Cut", "Decision", "Question", "Use", "all_whole"]
