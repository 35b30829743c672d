"""The rule of operations that fill a tensor with random numbers."""

from __future__ import annotations

from typing import Any

from penstock.card.device.decision import WHOLE, Cut, Decision, Question

# torch's operations and those by which the cards make the same numbers however they are split.
_COUNTED = {
    "aten::uniform_": "uniform_",
    "aten::normal_": "normal_",
    "aten::bernoulli_.float": "bernoulli_",
    "aten::bernoulli_.Tensor": "bernoulli_",
    "aten::random_": "random_",
    "aten::random_.from": "random_",
    "aten::random_.to": "random_to",
    "aten::exponential_": "exponential_",
    "aten::geometric_": "geometric_",
    "aten::cauchy_": "cauchy_",
    "aten::log_normal_": "log_normal_",
}


def random_rule(question: Question) -> list[Decision]:
    """Each card fills its own rows; what torch can only make by itself is made whole."""
    counted = _COUNTED.get(question.full_name)
    whole = [WHOLE] * len(question.operands)
    results = [WHOLE] * len(question.results)
    cards = range(question.cards)
    if counted is None:
        operation = {"operation": [question.full_name for _ in cards]}
        return [Decision(whole, results, operation, "penstock::seeded")]
    own = question.operands[0]
    cut = own.cut if len(question.operands) == 1 else None
    first = [sum(cut.rows[:card]) if cut else 0 for card in cards]
    replaced: dict[str, list[Any]] = {
        "size": [list(own.size) for _ in cards],
        "dim": [cut.dim if cut else 0 for _ in cards],
        "first": first,
    }
    uses: list[Cut] = [cut] if cut else []
    return [Decision(uses or whole, results, replaced, f"penstock::{counted}")]
