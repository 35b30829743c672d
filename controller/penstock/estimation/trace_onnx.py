"""Work and memory of an ONNX graph: a forward pass, or a training step derived from it.

The backward pass follows from the forward pass: each operand of a contraction that needs a gradient
costs another contraction of the same size. The memory of training is an upper bound: the result
of every operation on the way from a parameter is kept until its backward.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.estimation.memory import Lifetime, Memory, peak_memory
from penstock.estimation.onnx_flops import ELEMENTWISE, FORMULAS, FREE, VIEWS, Operation
from penstock.estimation.work import Work
from penstock.model import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from penstock.estimation.onnx_graph import Graph

STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}  # tensors of a parameter's size
_HALF = {"bf16", "fp16"}


class OnnxStep:
    """One step of a graph: its work, its memory and what was assumed."""

    def __init__(self, graph: Graph, *, training: bool, precision: str, optimizer: str) -> None:
        if optimizer not in STATES:
            raise PenstockError(
                f"unknown optimizer {optimizer!r}", f"an ONNX file has {', '.join(STATES)}",
                "name one of these",
            )  # fmt: skip
        self._graph = graph
        self._training = training
        self._precision = precision
        self._states = STATES[optimizer]
        self._learning = set(graph.parameters) if training else set()
        for node in graph.nodes:  # they are in execution order
            if self._learning.intersection(node.input):
                self._learning.update(node.output)
        self.notes: list[str] = []
        if training:
            self.notes.append("memory of training is an upper bound, derived from the graph")

    def work(self, attributes: Callable[[Any], dict[str, Any]]) -> Work:
        """Counts each node; `attributes` reads a node's."""
        work = Work()
        for node in self._graph.nodes:
            domain = node.domain if node.domain not in {"", "ai.onnx"} else ""
            name = f"{domain}.{node.op_type}" if domain else node.op_type
            if name in FORMULAS:
                self._count(work, node, attributes(node))
            elif name in ELEMENTWISE:
                elements = self._elements(node)
                work.add_elements("forward", elements)
                if self._learning.intersection(node.output):
                    work.add_elements("backward", elements)
            elif name not in FREE:
                work.add_unknown(name, self._elements(node))
        if self._training:
            size = self._graph.elements_of(self._graph.parameters)
            work.add_elements("optimizer", size * (2 + self._states))
        return work

    def _count(self, work: Work, node: Any, attributes: dict[str, Any]) -> None:
        shapes = self._graph.shapes
        operation = Operation(
            attributes,
            [shapes.get(one) for one in node.input],
            shapes.get(node.output[0], ()) if node.output else (),
            [one in self._learning for one in node.input],
        )
        if any(one and one not in shapes for one in [*node.input, *node.output[:1]]):
            work.add_unknown(f"{node.op_type} (shapes are not known)", self._elements(node))
            return
        try:
            forward, backward = FORMULAS[node.op_type](operation)
        except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError) as error:
            work.add_unknown(f"{node.op_type} ({error})", self._elements(node))
            return
        dtype = self._type(node.input[0])
        work.add_contraction("forward", node.op_type, forward, dtype)
        if backward:
            work.add_contraction("backward", f"{node.op_type} backward", backward, dtype)

    def _elements(self, node: Any) -> int:
        known = [self._graph.shapes.get(one, ()) for one in [*node.input, *node.output]]
        return max((math.prod(shape) for shape in known), default=0)

    def _type(self, name: str) -> str:
        found = self._graph.types.get(name, "fp32")
        return self._precision if found == "fp32" else found

    def memory(self) -> Memory:
        """Memory at the peak; the moments are the nodes, then the nodes again from the last."""
        graph = self._graph
        last = {name: i for i, node in enumerate(graph.nodes) for name in node.input}
        count = len(graph.nodes)
        end = 2 * count + 2
        fixed = sum(graph.bytes_of(one) for one in graph.parameters)
        others = sum(graph.bytes_of(one) for one in graph.constants - graph.parameters)
        inputs = sum(graph.bytes_of(one) for one in graph.inputs)
        lives = [
            Lifetime(fixed, 0, None, "parameters"),
            Lifetime(others, 0, None, "buffers"),
            Lifetime(inputs, 0, None, "inputs"),
        ]
        if self._training:
            lives += [
                Lifetime(fixed * self._states, 0, None, "optimizer state"),
                Lifetime(fixed, end, None, "gradients"),
            ]
        for index, node in enumerate(graph.nodes):
            if node.op_type in VIEWS:
                continue
            for name in node.output:
                size = self._activation_bytes(name)
                used = count if name in graph.outputs else last.get(name, index) + 1
                if name in self._learning:
                    back = 2 * count - index
                    lives += [
                        Lifetime(size, index, back + 1, "activations"),
                        Lifetime(size, 2 * count - used, back + 1, "temporaries"),
                    ]
                else:
                    lives.append(Lifetime(size, index, used, "activations"))
        return peak_memory(lives)

    def _activation_bytes(self, name: str) -> int:
        size = self._graph.bytes_of(name)
        is_halved = self._graph.types.get(name) == "fp32" and self._precision in _HALF
        return size // 2 if is_halved else size
