"""`Tracer`: sees each operation of a traced step, counts it and follows its storages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from penstock.estimation.flops import FORMULAS
from penstock.estimation.operations import is_elementwise, is_free
from penstock.estimation.storages import Storages
from penstock.estimation.values import Values
from penstock.estimation.work import Phase, Work

if TYPE_CHECKING:
    from penstock.estimation.memory import Part

_PARTS: dict[Phase, Part] = {
    "forward": "activations", "backward": "temporaries", "optimizer": "temporaries",
}  # fmt: skip
_DTYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16",
}  # fmt: skip


class Tracer(TorchDispatchMode):
    """Runs the operations of a step on tensors without data; `phase` says which part it is."""

    def __init__(self, fake_mode: Any) -> None:
        super().__init__()
        self.phase: Phase = "forward"
        self.work = Work()
        self.storages = Storages()
        self.values = Values(fake_mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation."""
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        with self:  # in inference mode, operations come before they are taken apart
            parts = func.decompose(*args, **kwargs) if _is_made_of_others(func) else NotImplemented
        if parts is not NotImplemented:
            return parts
        try:
            result = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            result = self.values.decide(func, args, kwargs)
        else:
            self.values.follow(func, args, kwargs, result)
        self._count(func, args, kwargs, result)
        made = _tensors(result)
        dense = [one for one in made if one.layout is torch.strided]
        if len(dense) < len(made):
            self.work.add_unknown(f"memory of {func.overloadpacket}'s sparse result", 0)
        self.storages.see(dense, _PARTS[self.phase])
        return result

    def _count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func.overloadpacket.__name__
        if func.namespace in {"aten", "_c10d_functional"} and name.rstrip("_") in FORMULAS:
            self._count_contraction(func, name.rstrip("_"), args, kwargs, result)
            return
        if func.is_view or func.namespace == "profiler" or is_free(name):
            return
        elements = max((_elements(one) for one in [*args, *kwargs.values(), result]), default=0)
        if torch.Tag.pointwise in func.tags or (func.namespace == "aten" and is_elementwise(name)):
            self.work.add_elements(self.phase, elements)
        else:
            self.work.add_unknown(f"{func.namespace}.{name}", elements)

    def _count_contraction(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        given = [
            args[i] if i < len(args) else kwargs.get(one.name, one.default_value)
            for i, one in enumerate(func._schema.arguments)
        ]
        dtype = next(one.dtype for one in given if isinstance(one, torch.Tensor))
        shapes = [tuple(one.shape) for one in _tensors(result)]
        flops = FORMULAS[name](tree_map(_shape, given), shapes)
        known = _DTYPES.get(dtype, str(dtype).removeprefix("torch."))
        self.work.add_contraction(self.phase, name, flops, known)


def _is_made_of_others(func: Any) -> bool:
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return func.overloadpacket.__name__ not in FORMULAS and func.has_kernel_for_dispatch_key(
        composite
    )


def _tensors(result: Any) -> list[torch.Tensor]:
    return [one for one in tree_flatten(result)[0] if isinstance(one, torch.Tensor)]


def _shape(one: Any) -> Any:
    return tuple(one.shape) if isinstance(one, torch.Tensor) else one


def _elements(one: Any) -> int:
    return sum(math.prod(tensor.shape) for tensor in _tensors(one))
