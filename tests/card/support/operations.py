"""PyTorch's own table of operations (OpInfo), run on the CPU and on the device, and compared."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_leaves, tree_map

from penstock.card.device.operand import Operand
from penstock.card.device.planner import split_for
from penstock.card.device.start import session
from penstock.card.device.tensors import buffer_of
from penstock.card.layout import Cut, share_rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 6  # of each operation
CLOSE = {"rtol": 2e-4, "atol": 2e-4, "equal_nan": True}
# Their results are drawn by unlike generators: only shapes and types are compared.
DRAWN = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential",
    "geometric", "log_normal", "multinomial", "new_empty", "new_empty_strided", "normal",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform",
    "nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward", "nn.functional.rrelu",
    "nn.functional.scaled_dot_product_attention", "svd_lowrank", "pca_lowrank",
}  # fmt: skip


def name_of(op) -> str:
    """The name by which results list an operation."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPERATIONS = {name_of(op): op for op in op_db if "jiterator" not in op.name}


@dataclass
class Outcome:
    """How the samples of an operation compare."""

    compared: int = 0
    differences: list[str] = field(default_factory=list)


def dtype_for(op) -> torch.dtype:
    """float32, or what the operation takes instead."""
    supported = op.supported_dtypes("cpu")
    preferred = (torch.float32, torch.complex64, torch.int64, torch.bool)
    return next((one for one in preferred if one in supported), torch.float32)


def compare(op, *, is_split: bool) -> Outcome:
    """Runs the samples that the CPU accepts on both devices, forward and backward."""
    outcome = Outcome()
    dtype = dtype_for(op)
    has_gradient = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(0)
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, has_gradient), SAMPLES))
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, AssertionError):
        return outcome  # torch has no samples for this machine
    for sample in samples:
        given = (sample.input, sample.args, sample.kwargs)
        own = tree_map(_copied, given)
        try:
            expected = _called(op, own)
        except Exception:  # noqa: BLE001, S112 - not accepted by the CPU
            continue
        outcome.compared += 1
        moved = tree_map(lambda one: _moved(one, is_split=is_split), given)
        difference = _compared(op, sample, expected, own, moved, has_gradient)
        if difference is not None:
            outcome.differences.append(difference)
    return outcome


def _called(op, given):
    first, args, kwargs = given
    torch.manual_seed(1)
    return op(first, *args, **kwargs)


def _compared(op, sample, expected, own, moved, has_gradient) -> str | None:
    is_drawn = op.name in DRAWN
    try:
        actual = _called(op, moved)
        difference = _difference(tree_map(_fetched, expected), tree_map(_fetched, actual), is_drawn)
        if difference is None and has_gradient:
            difference = _backward(sample, expected, actual, own, moved, is_drawn)
    except Exception as error:  # noqa: BLE001 - it is the difference
        return f"{type(error).__name__}: {str(error)[:200]}"
    return difference


def _backward(sample, expected, actual, own, moved, is_drawn) -> str | None:
    outs = [_with_gradient(sample.output_process_fn_grad(one)) for one in (expected, actual)]
    leaves = [_with_gradient(one) for one in (own, moved)]
    if not outs[0] or not leaves[0]:
        return None
    generator = torch.Generator().manual_seed(3)
    seeds = [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in outs[0]]
    try:
        wanted = torch.autograd.grad(outs[0], leaves[0], seeds, allow_unused=True)
    except RuntimeError:
        return None  # not differentiable on the CPU either
    moved_seeds = [one.to("penstock") for one in seeds]
    found = torch.autograd.grad(outs[1], leaves[1], moved_seeds, allow_unused=True)
    difference = _difference(
        [_fetched(one) for one in wanted], [_fetched(one) for one in found], is_drawn
    )
    return None if difference is None else f"backward: {difference}"


def _with_gradient(tree) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.requires_grad]


def _copied(one):
    if not isinstance(one, torch.Tensor):
        return one
    return one.detach().clone().requires_grad_(one.requires_grad)


def _fetched(one):
    return one.detach().cpu() if isinstance(one, torch.Tensor) else one


def _moved(one, *, is_split: bool):
    if isinstance(one, torch.device):
        return torch.device("penstock")
    if one == "cpu" and isinstance(one, str):
        return "penstock"
    if not isinstance(one, torch.Tensor):
        return one
    moved = one.detach().to("penstock")
    if is_split and moved.dim() and moved.numel():
        split(moved)
    return moved.requires_grad_(one.requires_grad)


def split(tensor: torch.Tensor) -> bool:
    """Splits a tensor over the cards along the first dimension along which that is possible."""
    own = session()
    operand = Operand(0, tensor, buffer_of(tensor), is_changed=True)
    for dim in range(tensor.dim()):
        rows = share_rows(tensor.shape[dim], own.speeds)
        layout = None if rows is None else split_for(operand, Cut(dim, rows))
        if layout is not None:
            with own.stream.lock:
                own.change_layout(operand.buffer, layout, tensor.dtype)
            return True
    return False


def _difference(expected, actual, is_drawn: bool) -> str | None:
    wanted, found = tree_leaves(expected), tree_leaves(actual)
    if len(wanted) != len(found):
        return f"{len(found)} results instead of {len(wanted)}"
    for one, other in zip(wanted, found, strict=True):
        if not isinstance(one, torch.Tensor):
            if one != other and not (one != one and other != other):  # noqa: PLR0124 - nan
                return f"{other} instead of {one}"
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{other.dtype} {list(other.shape)} instead of {one.dtype} {list(one.shape)}"
        if not is_drawn:
            try:
                torch.testing.assert_close(other, one, **CLOSE)
            except AssertionError as error:
                return " ".join(str(error).split())[:200]
    return None
