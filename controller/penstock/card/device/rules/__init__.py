"""Rules: how each operation can be split over the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.card.device.rules.randomness import random_rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.card.device.decision import Decision, Question
    from penstock.card.device.signature import Signature

    Rule = Callable[[Question], Decision | None]


def rule_for(signature: Signature) -> Rule | None:
    """The rule of an operation; None: it is done whole on every card."""
    if signature.is_random:
        return random_rule
    return None
