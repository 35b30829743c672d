"""Folding the parts of an ONNX graph that compute shapes, once the sizes of its inputs are known.

An exporter writes `x.view(batch, length, …)` as a chain of small integer operations. Where
inference does not follow it, shapes behind it stay unknown, so it is computed and becomes a
constant.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

from penstock.estimation.onnx_flops import dimensions_of

_MOST_ELEMENTS = 1024  # of a constant that takes part; shapes are far smaller
_MOST_ROUNDS = 2000  # each makes the shapes of at least one more operation known
_FOLDED = """
    Add And Cast Ceil Concat Div Equal Floor Gather Greater Identity Less Max Min Mod Mul Neg Not
    Or ReduceProd ReduceSum Reshape Slice Sqrt Squeeze Sub Unsqueeze Where
"""
FOLDED = frozenset(_FOLDED.split())


def infer_shapes(onnx: Any, model: Any) -> Any:
    """The model with all shapes that can be known."""
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for _ in range(_MOST_ROUNDS):
        if not _fold_once(onnx, model):
            break
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return model


def _fold_once(onnx: Any, model: Any) -> bool:
    """Replaces operations on known integers by constants; returns whether there were any."""
    graph = model.graph
    values = _constants(onnx, graph)
    shapes = {
        one.name: dimensions_of(one) for one in [*graph.input, *graph.value_info, *graph.output]
    }
    for tensor in graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
    folded = []
    for node in graph.node:
        value = _value(onnx, model, node, values, shapes)
        if value is not None and value.size <= _MOST_ELEMENTS:
            values[node.output[0]] = value
            folded.append(node)
    for node in folded:
        graph.initializer.append(
            onnx.numpy_helper.from_array(values[node.output[0]], node.output[0])
        )
        graph.node.remove(node)
    return bool(folded)


def _constants(onnx: Any, graph: Any) -> dict[str, Any]:
    found = {
        one.name: onnx.numpy_helper.to_array(one)
        for one in graph.initializer
        if math.prod(one.dims) <= _MOST_ELEMENTS and not one.external_data
    }
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            if math.prod(tensor.dims) <= _MOST_ELEMENTS and not tensor.external_data:
                found[node.output[0]] = onnx.numpy_helper.to_array(tensor)
    return found


def _value(onnx: Any, model: Any, node: Any, values: Any, shapes: Any) -> Any:
    """The value of an operation's result; None if it is not known."""
    numpy = importlib.import_module("numpy")
    if node.domain not in {"", "ai.onnx"} or len(node.output) != 1:
        return None
    if node.op_type == "Shape" and shapes.get(node.input[0]) is not None:
        ends = {one.name: one.i for one in node.attribute}
        part = shapes[node.input[0]][ends.get("start", 0) : ends.get("end")]
        return numpy.array(part, dtype=numpy.int64)
    if node.op_type == "ConstantOfShape" and node.input[0] in values:
        if math.prod(map(int, values[node.input[0]])) > _MOST_ELEMENTS:
            return None
    elif node.op_type not in FOLDED:
        return None
    if any(one and one not in values for one in node.input):
        return None
    one_node = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node], "one",
            [onnx.helper.make_tensor_value_info(name, 0, None) for name in node.input if name],
            [onnx.helper.make_tensor_value_info(node.output[0], 0, None)],
        ),
        opset_imports=model.opset_import,
    )  # fmt: skip
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator(one_node)
    return numpy.asarray(
        evaluator.run(None, {name: values[name] for name in node.input if name})[0]
    )
