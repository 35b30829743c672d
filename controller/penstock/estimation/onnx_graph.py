"""`Graph`: an ONNX file's nodes with the shapes of all their tensors. Weights are never read."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.estimation.onnx_flops import dimensions_of
from penstock.estimation.onnx_folding import infer_shapes
from penstock.model import PenstockError, listing, nearest, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from penstock.estimation.flops import Shape

_SMALL_BYTES = 2**16  # constants up to this size may be shapes, which inference needs


@dataclass(frozen=True)
class Graph:
    """A graph in execution order; `sizes` are bytes an element; `parameters` are learned."""

    nodes: list[Any]
    shapes: dict[str, Shape]
    sizes: dict[str, int]
    types: dict[str, str]
    inputs: list[str]
    outputs: list[str]
    constants: set[str]
    parameters: set[str]

    def bytes_of(self, name: str) -> int:
        """Bytes of a tensor; 0 where its shape is not known."""
        return math.prod(self.shapes.get(name, (0,))) * self.sizes.get(name, 4)

    def elements_of(self, names: Iterable[str]) -> int:
        """Elements of several tensors."""
        return sum(math.prod(self.shapes[one]) for one in names)


def attributes_of(node: Any) -> dict[str, Any]:
    """The attributes of a node by name; subgraphs and tensors are left out."""
    onnx = _import_onnx()
    plain = {onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.STRING}
    return {
        one.name: onnx.helper.get_attribute_value(one)
        for one in node.attribute
        if one.type in plain
    }


def load_graph(path: Path, dims: Mapping[str, int]) -> Graph:
    """Reads a file and infers its shapes, with `dims` for its symbolic dimensions.

    Raises:
        PenstockError: onnx is not installed, the file is no ONNX model, or a dimension is missing.
    """
    onnx = _import_onnx()
    model = _read(onnx, path)
    _drop_weights(onnx, model)
    _set_dims(model, dims)
    try:
        model = onnx.inliner.inline_local_functions(model)
        model = infer_shapes(onnx, model)
    except Exception as error:
        damaged = _damaged(path, error)
        raise damaged from error
    return _graph(onnx, model)


def _import_onnx() -> Any:
    try:
        onnx = importlib.import_module("onnx")
        for part in ("inliner", "shape_inference"):
            importlib.import_module(f"onnx.{part}")
    except ImportError as error:
        raise PenstockError(
            "cannot read ONNX files", f"{error}", "run pip install 'penstock[onnx]'"
        ) from error
    return onnx


def _read(onnx: Any, path: Path) -> Any:
    if not path.is_file():
        raise PenstockError(f"cannot read {path}", "there is no such file", "name an ONNX file")
    try:
        model = onnx.load(str(path), load_external_data=False)  # only shapes are needed
    except OSError:
        raise
    except Exception as error:
        raise _damaged(path, error) from error
    if not model.ir_version or not model.opset_import or not model.graph.node:
        raise _damaged(path, ValueError("it has no operations"))
    return model


def _damaged(path: Path, error: Exception) -> PenstockError:
    text = " ".join(str(error).split())[:200]
    return PenstockError(
        f"{path} is no ONNX model, or a damaged one", printable(text) or type(error).__name__,
        "export it again",
    )  # fmt: skip


def _drop_weights(onnx: Any, model: Any) -> None:
    """Removes the content of large constants, as inference copies a model and is bound to 2 GiB."""
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) > _SMALL_BYTES or tensor.ByteSize() > 4 * _SMALL_BYTES:
            for content in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
                tensor.ClearField(content)
            tensor.data_location = onnx.TensorProto.EXTERNAL


def _set_dims(model: Any, dims: Mapping[str, int]) -> None:
    """Puts sizes in the place of symbolic dimensions.

    Raises:
        PenstockError: an input, or a dimension of one, has no size, or there is no such dimension.
    """
    constants = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in constants]
    used: set[str] = set()
    missing: dict[str, None] = {}
    for one in inputs:
        if not one.type.tensor_type.HasField("shape"):
            raise PenstockError(
                f"input {printable(one.name)!r} has no shape", "not even its rank is in the file",
                "export it with shapes",
            )  # fmt: skip
        for index, dim in enumerate(one.type.tensor_type.shape.dim):
            name = dim.dim_param or f"{one.name}.{index}"
            if dim.dim_param or not dim.HasField("dim_value"):
                if name in dims:
                    dim.dim_value = dims[name]
                    used.add(name)
                else:
                    missing[name] = None
    unused = sorted(set(dims) - used)
    if unused:
        near = nearest(unused[0], missing)
        raise PenstockError(
            f"the model has no symbolic dimension {unused[0]!r}",
            f"did you mean {near!r}?" if near else f"it has {listing(list(missing)) or 'none'}",
            "name one of its inputs' dimensions",
        )
    if missing:
        raise PenstockError(
            f"the sizes of {listing(list(missing))} are not known", "they are symbolic in the file",
            f"add {' '.join(f'--dim {name}=…' for name in missing)}",
        )  # fmt: skip
    _forget_symbolic(model.graph, dims)


def _forget_symbolic(graph: Any, dims: Mapping[str, int]) -> None:
    """Puts sizes into the exporter's own shapes, and drops those that stay symbolic."""
    kept = []
    for one in graph.value_info:
        for dim in one.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
        if dimensions_of(one) is not None:
            kept.append(one)
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for one in graph.output:
        one.type.tensor_type.ClearField("shape")


def _graph(onnx: Any, model: Any) -> Graph:
    graph = model.graph
    found = Graph(
        list(graph.node), {}, {}, {}, [], [one.name for one in graph.output], set(), set()
    )
    for value in [*graph.input, *graph.value_info, *graph.output]:
        shape = dimensions_of(value)
        if shape is not None:
            found.shapes[value.name] = shape
        _set_type(onnx, found, value.name, value.type.tensor_type.elem_type)
    for tensor in graph.initializer:
        found.shapes[tensor.name] = tuple(tensor.dims)
        _set_type(onnx, found, tensor.name, tensor.data_type)
        found.constants.add(tensor.name)
        if tensor.dims and found.types[tensor.name] in {"fp32", "fp16", "bf16", "fp64"}:
            found.parameters.add(tensor.name)
    found.inputs.extend(one.name for one in graph.input if one.name not in found.constants)
    return found


def _set_type(onnx: Any, graph: Graph, name: str, element_type: int) -> None:
    word = onnx.TensorProto.DataType.Name(element_type).lower() if element_type else "undefined"
    known = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "double": "fp64"}
    graph.types[name] = known.get(word, word)
    widths = {"fp32": 4, "fp16": 2, "bf16": 2, "fp64": 8, "int64": 8, "uint64": 8, "int32": 4}
    graph.sizes[name] = widths.get(graph.types[name], 4 if "32" in word else 1)
