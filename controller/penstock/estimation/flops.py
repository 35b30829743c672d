"""Floating-point operations (FLOPs) of contractions, from their shapes.

A multiplication and the addition of its product are two FLOPs. A formula takes the arguments of
PyTorch's operation, in the order of its schema, with the shape in place of each tensor, and the
shapes of its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = tuple[int, ...]
Formula = Callable[[Sequence[Any], Sequence[Shape]], int]


def matmul_flops(rows: int, inner: int, columns: int, batch: int = 1) -> int:
    """FLOPs of `batch` products of (rows by inner) and (inner by columns)."""
    return 2 * batch * rows * inner * columns


def convolution_flops(image: Shape, weight: Shape, result: Shape, *, transposed: bool) -> int:
    """FLOPs of a convolution of any number of dimensions, with any number of groups.

    `weight` is (out, in / groups, kernel…), transposed (in, out / groups, kernel…): each element of
    the result, transposed of the image, meets all of the weight but its first dimension.
    """
    places = image if transposed else result
    return 2 * math.prod(places) * math.prod(weight[1:])


def attention_flops(query: Shape, key: Shape, value: Shape, products: tuple[int, int]) -> int:
    """FLOPs of attention of (…, heads, length, width); a causal mask is counted in full.

    `products` says how often the two kinds of product occur: of the scores' size with the keys'
    width (q·kᵀ is one) and with the values' width (p·v is one).
    """
    scores = math.prod(query[:-1]) * key[-2]
    return 2 * scores * (products[0] * query[-1] + products[1] * value[-1])


FORWARD = (1, 1)  # q·kᵀ; p·v
FUSED_BACKWARD = (3, 2)  # q·kᵀ again, gradients of q and k; gradients of p and v


def _mm(a: Sequence[Any], _: Sequence[Shape]) -> int:
    return matmul_flops(a[0][0], a[0][1], a[1][1])


def _addmm(a: Sequence[Any], _: Sequence[Shape]) -> int:
    return _mm(a[1:], _)


def _bmm(a: Sequence[Any], _: Sequence[Shape]) -> int:
    return matmul_flops(a[0][1], a[0][2], a[1][2], a[0][0])


def _baddbmm(a: Sequence[Any], _: Sequence[Shape]) -> int:
    return _bmm(a[1:], _)


def _mv(a: Sequence[Any], _: Sequence[Shape]) -> int:
    return 2 * math.prod(a[0])


def _addmv(a: Sequence[Any], _: Sequence[Shape]) -> int:
    return _mv(a[1:], _)


def _linear(a: Sequence[Any], _: Sequence[Shape]) -> int:
    return 2 * math.prod(a[0]) * math.prod(a[1][:-1])


def _grouped_mm(a: Sequence[Any], results: Sequence[Shape]) -> int:
    """Each row meets one group's matrix; which one does not matter.

    With two matrices as operands the inner dimension is what the groups divide.
    """
    if len(a[0]) == 2 and len(a[1]) == 2:
        return matmul_flops(a[0][0], a[0][1], a[1][1])
    if len(a[0]) == 3 and len(a[1]) == 3:
        return _bmm(a, results)
    return 2 * math.prod(results[0]) * a[0][-1]


def _convolution(a: Sequence[Any], results: Sequence[Shape]) -> int:
    return convolution_flops(a[0], a[1], results[0], transposed=bool(a[6]))


def _convolution_backward(a: Sequence[Any], _: Sequence[Shape]) -> int:
    """The gradients of image and weight cost as much as the forward pass each."""
    once = convolution_flops(a[1], a[2], a[0], transposed=bool(a[7]))
    return once * sum(bool(wanted) for wanted in a[10][:2])


def _attention(a: Sequence[Any], _: Sequence[Shape]) -> int:
    return attention_flops(a[0], a[1], a[2], FORWARD)


def _attention_backward(a: Sequence[Any], _: Sequence[Shape]) -> int:
    """Fused kernels keep no scores, so they compute them again."""
    return attention_flops(a[1], a[2], a[3], FUSED_BACKWARD)


def recurrent_flops(steps: int, batch: int, sizes: tuple[int, int, int], gates: int) -> int:
    """FLOPs of one direction of a recurrent layer; `sizes` are those of input, cell and output."""
    inner, cell, output = sizes
    return 2 * steps * batch * gates * cell * (inner + output)


def _recurrent_layer(a: Sequence[Any], _: Sequence[Shape]) -> int:
    """A layer of oneDNN: input (steps, batch, width), and its two weights (gates x cell, …)."""
    steps_and_batch = math.prod(a[0][:2])
    return 2 * steps_and_batch * (math.prod(a[1]) + math.prod(a[2]))


def _recurrent_layer_backward(a: Sequence[Any], _: Sequence[Shape]) -> int:
    """The gradients of input and of weights, for each product of the forward pass."""
    return 2 * _recurrent_layer(a, _)


# Attention over packed sequences (_flash_attention_forward and the like) is not here: its cost
# depends on lengths that shapes do not show, so it is named as unknown.
_FUSED = ("flash", "efficient", "cudnn")
FORMULAS: dict[str, Formula] = {
    "mm": _mm,
    "_int_mm": _mm,
    "_scaled_mm": _mm,
    "addmm": _addmm,
    "_addmm_activation": _addmm,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "addbmm": _baddbmm,
    "mv": _mv,
    "addmv": _addmv,
    "dot": _mv,
    "vdot": _mv,
    "linear": _linear,
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _grouped_mm,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    "mkldnn_rnn_layer": _recurrent_layer,
    "mkldnn_rnn_layer_backward": _recurrent_layer_backward,
    **{f"_scaled_dot_product_{kind}_attention": _attention for kind in _FUSED},
    **{f"_scaled_dot_product_{kind}_attention_backward": _attention_backward for kind in _FUSED},
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_scaled_dot_product_attention_math": _attention,
    "_scaled_dot_product_attention_math_for_mps": _attention,
}
