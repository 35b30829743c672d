"""FLOPs of ONNX's contractions, forward and backward, from their shapes and attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.estimation.flops import (
    FORWARD,
    FUSED_BACKWARD,
    Shape,
    attention_flops,
    convolution_flops,
    matmul_flops,
    recurrent_flops,
)


@dataclass(frozen=True)
class Operation:
    """One node of a graph.

    `shapes` are those of its inputs, None for inputs that are left out; `learns` says of each
    input whether it needs a gradient.
    """

    attributes: Mapping[str, Any]
    shapes: Sequence[Shape | None]
    result: Shape
    learns: Sequence[bool]

    def shape(self, index: int) -> Shape:
        """The shape of an input that must be there. Raises `ValueError` if it is left out."""
        found = self.shapes[index] if index < len(self.shapes) else None
        if found is None:
            raise ValueError(f"input {index} is left out")
        return found


def dimensions_of(value: Any) -> Shape | None:
    """The shape in a graph's description of a tensor; None if it is not known."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    if any(not one.HasField("dim_value") or one.dim_value < 0 for one in dims):
        return None
    return tuple(one.dim_value for one in dims)


Formula = Callable[[Operation], tuple[int, int]]  # FLOPs forward and backward


def _two_operands(forward: int, node: Operation, first: int = 0) -> tuple[int, int]:
    """Each operand that needs a gradient costs as much as the product itself."""
    return forward, forward * sum(node.learns[first : first + 2])


def _gemm(node: Operation) -> tuple[int, int]:
    rows, inner = node.shape(0)[:: -1 if node.attributes.get("transA") else 1]
    return _two_operands(matmul_flops(rows, inner, node.result[-1]), node)


def _matmul(node: Operation) -> tuple[int, int]:
    return _two_operands(2 * math.prod(node.result) * node.shape(0)[-1], node)


def _convolution(node: Operation) -> tuple[int, int]:
    flops = convolution_flops(node.shape(0), node.shape(1), node.result, transposed=False)
    return _two_operands(flops, node)


def _convolution_transposed(node: Operation) -> tuple[int, int]:
    flops = convolution_flops(node.shape(0), node.shape(1), node.result, transposed=True)
    return _two_operands(flops, node)


def _einsum(node: Operation) -> tuple[int, int]:
    """The product of all indices' sizes, for two operands. Raises `ValueError` for others."""
    equation = node.attributes.get("equation", b"")
    text = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    terms = text.partition("->")[0].split(",")
    if len(terms) != 2 or len(node.shapes) != 2:
        raise ValueError("only products of two operands are known")
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms):
        shape = node.shape(index)
        names = _index_names(term, len(shape))
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))  # a size of 1 is repeated
    return _two_operands(2 * math.prod(sizes.values()), node)


def _index_names(term: str, dimensions: int) -> list[str]:
    """One name an index; those of an ellipsis are numbered from the last."""
    before, dots, after = term.partition("...")
    hidden = dimensions - len(before) - len(after) if dots else 0
    return [*before, *(f"…{hidden - i}" for i in range(hidden)), *after]


def _attention(node: Operation) -> tuple[int, int]:
    query, key, value = (_with_heads(node, index) for index in range(3))
    past = node.shapes[4] if len(node.shapes) > 4 else None
    if past is not None:
        key = (*key[:-2], key[-2] + past[-2], key[-1])
    backward = attention_flops(query, key, value, FUSED_BACKWARD) if any(node.learns[:3]) else 0
    return attention_flops(query, key, value, FORWARD), backward


def _with_heads(node: Operation, index: int) -> Shape:
    """The shape as (batch, heads, length, width), which may be (batch, length, heads x width)."""
    shape = node.shape(index)
    if len(shape) == 4:
        return shape
    heads = node.attributes["kv_num_heads" if index else "q_num_heads"]
    return (shape[0], heads, shape[1], shape[2] // heads)


def _recurrent(gates: int) -> Formula:
    def formula(node: Operation) -> tuple[int, int]:
        by_batch = node.attributes.get("layout", 0) == 1
        batch, steps = node.shape(0)[:2] if by_batch else node.shape(0)[1::-1]
        directions, _, inner = node.shape(1)
        cell = node.shape(2)[-1]
        of_input = directions * recurrent_flops(steps, batch, (inner, cell, 0), gates)
        of_cell = directions * recurrent_flops(steps, batch, (0, cell, cell), gates)
        # The cell's own state always needs a gradient where anything does.
        back = of_input * sum(node.learns[:2]) + of_cell * 2 * any(node.learns[:3])
        return of_input + of_cell, back

    return formula


FORMULAS: dict[str, Formula] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "ConvTranspose": _convolution_transposed,
    "Einsum": _einsum,
    "Attention": _attention,
    "RNN": _recurrent(1),
    "GRU": _recurrent(3),
    "LSTM": _recurrent(4),
}

_FREE = "Constant ConstantOfShape Identity Shape Size Reshape Flatten Squeeze Unsqueeze"
FREE = frozenset(_FREE.split())
VIEWS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})

_ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Cast CastLike Ceil Celu Clip Concat Cos Cosh CumSum DequantizeLinear Div Dropout
    DynamicQuantizeLinear Elu Equal Erf Exp Expand EyeLike Floor Gather GatherElements GatherND Gelu
    Greater GreaterOrEqual HardSigmoid HardSwish Hardmax IsInf IsNaN LeakyRelu Less LessOrEqual Log
    Max Mean Min Mish Mod Mul Neg Not Or PRelu Pad Pow QuantizeLinear Range Reciprocal Relu Round
    ScatterElements ScatterND Scatter Selu Shrink Sigmoid Sign Sin Sinh Slice Softplus Softsign
    SpaceToDepth DepthToSpace Split Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Tile Transpose Tril
    Trilu Where Xor OneHot Compress NonZero Unique ReverseSequence Upsample Resize GridSample

    ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare TopK CumProd

    BatchNormalization GroupNormalization InstanceNormalization LayerNormalization
    LpNormalization MeanVarianceNormalization RMSNormalization LRN LogSoftmax Softmax
    SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss

    AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxRoiPool MaxUnpool
    RoiAlign Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike
    RotaryEmbedding Col2Im TensorScatter
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
