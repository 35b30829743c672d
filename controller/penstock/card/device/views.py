"""Views: operations that only touch sizes and strides. They never reach a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device.tensors import METADATA_ONLY

if TYPE_CHECKING:
    from collections.abc import Callable

# What makes or changes views without saying so in its schema.
UNMARKED = {"aten::_unsafe_view", "aten::_reshape_alias", "aten::lift", "aten::lift_fresh"}


def view_kernel(operation: torch._ops.OpOverload) -> Callable[..., Any]:
    """Torch's own kernel for the CPU, which works on tensors of any device."""
    redispatch = operation.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(METADATA_ONLY, *args, **kwargs)

    return kernel


VIEW_CODE = view_kernel(torch.ops.aten.detach.default).__code__  # of all of these kernels
