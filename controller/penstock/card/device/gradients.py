"""Gradients of `unbind` and `select` that stay split: they lie with the batch outermost.

Attention is often written `query, key, value = x.reshape(batch, length, 3, …).permute(2, 0, …)`.
The gradient of that has the three in front of the batch, and torch would make a contiguous tensor
of it, of which no card could have the rows of its samples alone. A gradient may have any strides;
a result that a program asks for itself, by `torch.stack`, is contiguous as it expects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.kernel import Kernel
from penstock.card.device.signature import Signature
from penstock.card.device.tensors import buffer_of
from penstock.card.layout import Split, local_views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.card.device.session import Session


def gradient_kernels(session: Callable[[], Session]) -> dict[str, Callable[..., Any]]:
    """The kernels by name without "aten::"."""
    stack = Kernel(Signature(torch.ops.aten.stack.default), session)
    select_backward = Kernel(Signature(torch.ops.aten.select_backward.default), session)

    def stacked(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
        if dim == 0 and _is_made_by("UnbindBackward0") and any(map(_has_rows_split, tensors)):
            return _swapped(stack(tensors, 1))
        return stack(tensors, dim)

    def selected(gradient: torch.Tensor, sizes: Sequence[int], dim: int, index: int) -> Any:
        if dim == 0 and _is_made_by("SelectBackward0") and _has_rows_split(gradient):
            return _swapped(select_backward(gradient, [sizes[1], sizes[0], *sizes[2:]], 1, index))
        return select_backward(gradient, sizes, dim, index)

    return {"stack": stacked, "select_backward": selected}


def _swapped(tensor: Any) -> Any:
    return tensor.transpose(0, 1)


def _is_made_by(name: str) -> bool:
    """Whether torch runs the backward of this name: it takes the result as a gradient."""
    if torch._C._current_graph_task_id() == -1:
        return False
    node = torch._C._current_autograd_node()
    return node is not None and node.name() == name


def _has_rows_split(tensor: torch.Tensor) -> bool:
    """Whether each card has some indices of the first dimension."""
    layout = buffer_of(tensor).layout
    if not isinstance(layout, Split):
        return False
    found = local_views(layout, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(),
                        tensor.dtype.itemsize)  # fmt: skip
    return found is not None and found[0].dim == 0
