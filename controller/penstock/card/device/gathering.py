"""Gathering: why the cards exchange their parts of an argument before an operation, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.card.device.costs import GATHER, GatherCost
from penstock.card.device.decision import Cut
from penstock.card.device.rules import rules_for
from penstock.card.layout import Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.card.device.costs import Costs
    from penstock.card.device.decision import Decision, Question, Use
    from penstock.card.device.operand import Operand
    from penstock.card.device.signature import Signature
    from penstock.card.layout import Layout


def gather_cost(
    costs: Costs,
    signature: Signature,
    question: Question,
    decision: Decision,
    layouts: Sequence[Layout],
) -> GatherCost | None:
    """What a plan gathers each time that it runs; None if it gathers nothing."""
    gathered = [
        (operand, use)
        for operand, use, layout in zip(question.operands, decision.uses, layouts, strict=True)
        if isinstance(operand.layout, Split) and operand.layout is not layout
    ]
    if not gathered:
        return None
    size_bytes = sum({one.buffer.number: one.buffer.size_bytes for one, _ in gathered}.values())
    if decision.is_split:
        reason = "; ".join(dict.fromkeys(_needs(question, *one) for one in gathered))
    elif any(True for _ in rules_for(signature)(question)):
        reason = "no way to split it fits its arguments, so every card computes all of it"
    else:
        reason = "no rule splits it for such arguments, so every card computes all of it"
    return GatherCost(costs.cost(GATHER, question.name, reason), size_bytes)


def _needs(question: Question, operand: Operand, use: Use) -> str:
    cut = operand.cut
    lies = "in a way that does not fit it" if cut is None else f"along dim {cut.dim}"
    needed = "whole"
    if isinstance(use, Cut):
        needed = f"along dim {use.dim}"
        if cut is not None and use.dim == cut.dim:
            needed = "in other rows"
    return f"{_name_of(question, operand)} is split {lies} and needed {needed}"


def _name_of(question: Question, operand: Operand) -> str:
    for name, value in question.named.items():
        if any(one is operand for one in _flat(value)):
            return f"argument {name}"
    return f"argument {operand.index + 1}"


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value
