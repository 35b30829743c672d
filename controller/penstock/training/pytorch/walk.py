"""Walk of a loss's graph: the chains from the loss to its sums and means, see `factors`."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.training.factors import Chain, Reduction, UnclearLossError

if TYPE_CHECKING:
    import torch

# Nodes of autograd (derivatives.yaml of PyTorch) that are linear in each input that has a gradient.
_LINEAR = frozenset({
    "AddBackward0", "SubBackward0", "RsubBackward1", "NegBackward0", "CloneBackward0",
    "ToCopyBackward0", "ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0",
    "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "UnsqueezeBackward0",
    "StackBackward0", "CatBackward0", "SelectBackward0", "SliceBackward0", "UnbindBackward0",
    "AliasBackward0", "ExpandBackward0", "TBackward0", "TransposeBackward0", "PermuteBackward0",
})  # fmt: skip
_TIMES = frozenset({"MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"})
_PLAIN = frozenset({"SumBackward0", "SumBackward1", "MeanBackward0", "MeanBackward1"})
_NO, _MEAN, _SUM = range(3)  # at::Reduction
MOST_CHAINS = 256


@dataclass(frozen=True)
class Walked:
    """A chain and the nodes of its reductions, and last the node behind them."""

    chain: Chain
    nodes: tuple[Any, ...]


@dataclass(frozen=True)
class _Way:
    node: Any
    constant: float = 1.0
    reductions: tuple[Reduction, ...] = ()
    nodes: tuple[Any, ...] = ()
    name: str = ""


def walk(loss: torch.Tensor) -> list[Walked]:
    """The chains of a loss without their ends, in an order that is the same on all cards.

    Raises:
        UnclearLossError: the loss has no gradient, or too many terms.
    """
    if loss.grad_fn is None:
        raise UnclearLossError("it does not depend on a parameter")
    found: list[Walked] = []
    waiting = [_Way(loss.grad_fn)]
    while waiting:
        way = waiting.pop()
        onward = _step(way)
        if onward is None:
            found.append(_end(way))
        else:
            waiting += reversed(onward)
        if len(found) + len(waiting) > MOST_CHAINS:
            raise UnclearLossError(f"it has more than {MOST_CHAINS} terms")
    return found


def scaled_before(loss: torch.Tensor) -> list[tuple[Any, float]]:
    """Nodes of the numbers that a loss is a multiple of, with the factor that makes it of them."""
    found: list[tuple[Any, float]] = []
    node, factor = loss.grad_fn, 1.0
    while node is not None and node.name() in _TIMES:
        constant = _constant(node, node.name())
        if not constant:
            break
        factor *= constant
        (node,) = [one for one, _ in node.next_functions if one is not None]
        if tuple(node._input_metadata[0].shape):
            break
        found.append((node, factor))
    return found


def _step(way: _Way) -> list[_Way] | None:
    """The ways on from a node; None where the chain ends."""
    if way.node is None:
        return None
    node, name = way.node, way.node.name()
    if name in _LINEAR:
        return [_on(way, one, way.constant) for one, _ in node.next_functions if one is not None]
    if name in _TIMES and (constant := _constant(node, name)) is not None:
        (inner,) = [one for one, _ in node.next_functions if one is not None]
        return [_on(way, inner, way.constant * constant)]
    reduction = _reduction(node, name)
    if reduction is None:
        return None
    way = _Way(node, way.constant, (*way.reductions, reduction), (*way.nodes, node),
               way.name or name)  # fmt: skip
    if name not in _PLAIN:  # a loss of torch's: behind it nothing is linear
        return [_Way(None, way.constant, way.reductions, way.nodes, way.name)]
    return [_on(way, one, way.constant) for one, _ in node.next_functions if one is not None]


def _on(way: _Way, node: Any, constant: float) -> _Way:
    return _Way(node, constant, way.reductions, way.nodes, way.name)


def _end(way: _Way) -> Walked:
    name = way.name or way.node.name()
    return Walked(Chain(way.constant, way.reductions, 0, name), (*way.nodes, way.node))


def with_end(walked: Walked) -> Walked:
    """The chain with its end, which takes a walk of all the graph."""
    return Walked(replace(walked.chain, end=_digest(walked.nodes[-1])), walked.nodes)


def _constant(node: Any, name: str) -> float | None:
    """What a node multiplies by, None if that has a gradient itself or is no single number."""
    if sum(one is not None for one, _ in node.next_functions) != 1:
        return None
    other = node._saved_other
    if name in {"MulBackward1", "DivBackward1"}:  # a number of torch's own
        value = float(other)
    else:
        if node.next_functions[0][0] is None:  # a constant that is multiplied, or divided
            if name == "DivBackward0":
                return None
            other = node._saved_self
        if other is None or other.numel() != 1:
            return None
        value = float(other)
    if name.startswith("Div"):
        return 1 / value if value else math.inf
    return value


def _reduction(node: Any, name: str) -> Reduction | None:
    if name.startswith("NllLoss"):
        count = float(node._saved_total_weight) if node._saved_reduction == _MEAN else 0.0
        return _of(node._saved_reduction, count, is_counted=True)
    if hasattr(node, "_saved_reduction") and hasattr(node, "_saved_self"):
        size = node._saved_self.shape
        per_row = name.startswith(("MultiMargin", "MultilabelMargin"))
        count = size[0] if per_row and len(size) > 1 else math.prod(size)
        return _of(node._saved_reduction, float(count), is_counted=False)
    if name not in _PLAIN:
        return None
    size = tuple(node._saved_self_sym_sizes)
    if name.endswith("1"):
        size = tuple(size[one] for one in _dims(node._saved_dim, len(size)))
    return Reduction(name.startswith("Mean"), float(math.prod(size)))


def _of(reduction: int, count: float, *, is_counted: bool) -> Reduction | None:
    return None if reduction == _NO else Reduction(reduction == _MEAN, count, is_counted)


def _dims(dims: tuple[int, ...] | None, count: int) -> list[int]:
    """Dimensions, which autograd keeps as numbers without a sign; none means all."""
    if not dims:
        return list(range(count))
    return [(one - (1 << 64) if one >> 63 else one) % count for one in dims]


def _digest(start: Any) -> int:
    """A digest of the shapes and operations behind a node."""
    digest = hashlib.blake2b(digest_size=6)
    waiting, seen = [start], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        digest.update(node.name().encode())
        for name in dir(node):
            if name.startswith("_saved_self_sym_") or name in {"_saved_self", "_saved_other"}:
                digest.update(repr(_shape(getattr(node, name))).encode())
        waiting += [one for one, _ in node.next_functions]
    return int.from_bytes(digest.digest())


def _shape(value: Any) -> object:
    return tuple(value.shape) if hasattr(value, "shape") else value
