"""Graph of a loss behind its sums and means, as steps for `mixing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.training.mixing import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.training.mixing import Size

# Results of the same shape, in which elements along a dimension have met.
_MEET = ("Softmax", "LogSoftmax", "SafeSoftmax", "Cumsum", "Cumprod", "Logcumsumexp", "Cummax",
         "Cummin", "Sort", "Flip", "Roll")  # fmt: skip
_PICK = ("Index", "IndexSelect", "Gather")


def steps_behind(starts: Iterable[Any]) -> list[Step]:
    """The operations behind these nodes, in an order that is the same on all ranks."""
    found: list[Step] = []
    waiting, seen = list(reversed(list(starts))), set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.append(_step(node))
        waiting += [one for one, _ in reversed(node.next_functions)]
    return found


def sizes_of(steps: Sequence[Step]) -> list[float]:
    """All sizes in one list, which `with_sizes` takes apart again."""
    return [float(n) for step in steps for size in (*step.inputs, *step.outputs) for n in size]


def with_sizes(steps: Sequence[Step], numbers: Sequence[float]) -> list[Step]:
    """The steps of another rank, whose sizes these are."""
    rest = iter(numbers)

    def take(sizes: tuple[Size, ...]) -> tuple[Size, ...]:
        return tuple(tuple(int(next(rest)) for _ in size) for size in sizes)

    return [Step(one.name, take(one.inputs), take(one.outputs), one.along) for one in steps]


def _step(node: Any) -> Step:
    name = node.name()
    inputs = tuple(tuple(one._input_metadata[number].shape)
                   for one, number in node.next_functions if one is not None)  # fmt: skip
    outputs = tuple(tuple(one.shape) for one in node._input_metadata)
    return Step(name, inputs, outputs, _along(node, name, len((outputs or inputs or ((),))[0])))


def _along(node: Any, name: str, count: int) -> tuple[int, ...]:
    """See `Step.along`."""
    bare = name.partition("Backward")[0]
    if bare in _MEET:
        dims = getattr(node, "_saved_dims", None) or [node._saved_dim]
        return tuple(_signed(one) % max(1, count) for one in dims)
    if bare == "NativeLayerNorm":
        return tuple(range(count - len(node._saved_normalized_shape), count))
    if bare.startswith("ScaledDotProduct"):
        return (count - 2,)
    if bare in _PICK:
        return _picked(node, bare)
    return ()


def _picked(node: Any, name: str) -> tuple[int, ...]:
    """The dimension along which an index takes elements in another order, or one twice."""
    if name == "Index":
        indices = node._saved_indices
    else:
        indices = [None] * _signed(node._saved_dim) + [node._saved_index]
    for at, index in enumerate(indices):
        if index is None or index.dtype in {torch.bool, torch.uint8}:
            continue  # a mask leaves some out
        if index.dim() == 1 and bool((index[1:] > index[:-1]).all()):
            continue  # so does this
        if name != "Gather":
            return (at,)
    return ()


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
