"""Samples that see each other: what a model computes from several samples of a batch at once.

Such a result cannot be made from parts of the batch, and is refused. It is found by comparing the
shapes in the graphs of two ranks with different numbers of samples: a dimension whose size differs
is one of samples (or of words, which grow with them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Size = tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """An operation of a graph.

    Attributes:
        name: What torch calls its backward.
        inputs, outputs: Sizes of the tensors that have gradients.
        along: Dimensions of the first output, or of the first input if there is no such output,
            along which elements are put together, such as those of a softmax.
    """

    name: str
    inputs: tuple[Size, ...]
    outputs: tuple[Size, ...]
    along: tuple[int, ...] = ()


def mixing(one: Sequence[Step], other: Sequence[Step]) -> str | None:
    """The first operation by which samples see each other, in words; None if there is none.

    `one` and `other` are the graphs of two ranks with different numbers of samples.
    """
    if [step.name for step in one] != [step.name for step in other]:
        return "its operations depend on the number of samples"
    for mine, theirs in zip(one, other, strict=True):
        outputs = [_varying(a, b) for a, b in zip(mine.outputs, theirs.outputs, strict=True)]
        inputs = [_varying(a, b) for a, b in zip(mine.inputs, theirs.inputs, strict=True)]
        if any(found is None for found in (*outputs, *inputs)):
            return f"its shapes depend on the number of samples ({mine.name})"
        if any(len(found) > 1 for found in outputs if found):
            return f"each sample meets each other one ({mine.name})"
        if any(inputs) and not any(outputs):
            return f"samples are put together ({mine.name})"
        along = outputs[0] if outputs and outputs[0] else next(filter(None, inputs), set())
        if along and along & set(mine.along):
            return f"samples are put together ({mine.name})"
    return None


def _varying(one: Size, other: Size) -> set[int] | None:
    """Dimensions whose sizes differ; None if there are not as many."""
    if len(one) != len(other):
        return None
    return {i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b}
