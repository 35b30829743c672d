"""Rules: how each operation can be split over the cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from penstock.card.device.decision import Decision, Question

    Rule = Callable[[Question], Decision | None]


def rule_for(operation: torch._ops.OpOverload) -> Rule | None:
    """The rule of an operation; None: it is done whole on every card."""
    return None
