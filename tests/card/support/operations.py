"""PyTorch's own table of operations (OpInfo), run on the CPU and on the device, and compared."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves, tree_map

from penstock.card.device.operand import Operand
from penstock.card.device.planner import split_for
from penstock.card.device.start import session
from penstock.card.device.tensors import buffer_of
from penstock.card.layout import Cut, Split, share_rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core


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


@dataclass
class Reference:
    """What the CPU makes of one sample.

    Attributes:
        sample: The arguments.
        results: What the operation returns.
        seeds: Gradients of those results that have one, from which backward starts.
        gradients: What backward gives for the arguments; None if there is no backward.
        has_split: Whether an argument can be split; if not, both layouts are the same call.
        difference: What the device did otherwise when it was last compared.
    """

    sample: core.SampleInput
    results: Any
    seeds: list[torch.Tensor]
    gradients: tuple[torch.Tensor | None, ...] | None
    has_split: bool = True
    difference: str | None = None


def dtype_for(op) -> torch.dtype:
    """float32, or what the operation takes instead."""
    supported = op.supported_dtypes("cpu")
    preferred = (torch.float32, torch.complex64, torch.int64, torch.bool)
    return next((one for one in preferred if one in supported), torch.float32)


def compare(name: str, *, is_split: bool) -> Outcome:
    """Runs the samples that the CPU accepts on the device, forward and backward."""
    outcome = Outcome()
    with _without_stacks():
        for reference in _references(name):
            outcome.compared += 1
            if reference.has_split or not is_split:
                reference.difference = _compared(OPERATIONS[name], reference, is_split)
            if reference.difference is not None:
                outcome.differences.append(reference.difference)
    return outcome


@contextlib.contextmanager
def _without_stacks():
    """Keeps torch from reading the stack for each seed and each operation: half of all time here.

    It notes each seed, with the stack in words, for each kind of device that is not in use, and the
    table seeds before each sample. The table also looks for a test of torch's own on the stack.
    """
    with contextlib.ExitStack() as patches:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            patches.enter_context(mock.patch.object(kind, "manual_seed_all", _unseeded))
        for module in (common_utils, core):
            patches.enter_context(mock.patch.object(module, "extract_test_fn", _no_test))
        yield


def _unseeded(seed: int) -> None:
    pass


def _no_test() -> None:
    pass


@functools.lru_cache(maxsize=1)  # both layouts of an operation come one after the other
def _references(name: str) -> list[Reference]:
    """What the CPU makes of the samples that it accepts."""
    op = OPERATIONS[name]
    dtype = dtype_for(op)
    has_gradient = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(0)
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, has_gradient), SAMPLES))
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, AssertionError):
        return []  # torch has no samples for this machine
    references = (_reference(op, sample, has_gradient) for sample in samples)
    return [one for one in references if one is not None]


def _reference(op, sample: core.SampleInput, has_gradient: bool) -> Reference | None:
    """What the CPU makes of a sample; None if it does not accept it."""
    own = tree_map(_copied, _arguments(sample))
    try:
        results = _called(op, own)
    except Exception:  # noqa: BLE001 - whatever torch says of it
        return None
    reference = Reference(sample, tree_map(_fetched, results), [], None)
    if has_gradient:
        outs, leaves = _with_gradient(sample.output_process_fn_grad(results)), _with_gradient(own)
        generator = torch.Generator().manual_seed(3)
        reference.seeds = [
            torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in outs
        ]
        if outs and leaves:
            with contextlib.suppress(RuntimeError):  # not differentiable
                reference.gradients = torch.autograd.grad(
                    outs, leaves, reference.seeds, allow_unused=True
                )
    return reference


def _arguments(sample: core.SampleInput):
    return sample.input, sample.args, sample.kwargs


def _called(op, given):
    first, args, kwargs = given
    torch.manual_seed(1)
    return op(first, *args, **kwargs)


def _compared(op, reference: Reference, is_split: bool) -> str | None:
    is_drawn = op.name in DRAWN and reference.sample.kwargs.get("dropout_p") != 0
    try:
        moved = tree_map(_moved, _arguments(reference.sample))
        tensors = [one for one in tree_leaves(moved) if isinstance(one, torch.Tensor)]
        reference.has_split = any(split_of(one) is not None for one in tensors)
        if is_split:
            for one in tensors:
                split(one)
        results = _called(op, moved)
        difference = _difference(reference.results, tree_map(_fetched, results), is_drawn)
        if difference is None and reference.gradients is not None:
            difference = _backward(reference, moved, results, is_drawn)
    except Exception as error:  # noqa: BLE001 - it is the difference
        return f"{type(error).__name__}: {str(error)[:200]}"
    return difference


def _backward(reference: Reference, moved, results, is_drawn) -> str | None:
    outs = _with_gradient(reference.sample.output_process_fn_grad(results))
    seeds = [one.to("penstock") for one in reference.seeds]
    found = torch.autograd.grad(outs, _with_gradient(moved), seeds, allow_unused=True)
    difference = _difference(reference.gradients, [_fetched(one) for one in found], is_drawn)
    return None if difference is None else f"backward: {difference}"


def _with_gradient(tree) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.requires_grad]


def _copied(one):
    if not isinstance(one, torch.Tensor):
        return one
    return one.detach().clone().requires_grad_(one.requires_grad)


def _fetched(one):
    return one.detach().cpu() if isinstance(one, torch.Tensor) else one


def _moved(one):
    if isinstance(one, torch.device):
        return torch.device("penstock")
    if one == "cpu" and isinstance(one, str):
        return "penstock"
    if not isinstance(one, torch.Tensor):
        return one
    return one.detach().to("penstock").requires_grad_(one.requires_grad)


def split_of(tensor: torch.Tensor) -> Split | None:
    """The layout that splits a tensor along the first dimension along which that is possible."""
    if not tensor.numel():
        return None
    operand = Operand(0, tensor, buffer_of(tensor), is_changed=True)
    for dim in range(tensor.dim()):
        rows = share_rows(tensor.shape[dim], session().speeds)
        layout = None if rows is None else split_for(operand, Cut(dim, rows))
        if layout is not None:
            return layout
    return None


def split(tensor: torch.Tensor) -> bool:
    """Splits a tensor over the cards, if that is possible."""
    own, layout = session(), split_of(tensor)
    if layout is None:
        return False
    with own.stream.lock:
        own.change_layout(buffer_of(tensor), layout, tensor.dtype)
    return True


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
