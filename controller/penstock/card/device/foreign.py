"""Operations of other packages, such as `torchvision::nms`: their CPU kernels, in the program.

A package that adds operations to torch brings kernels for the CPU and for CUDA, and the cards have
neither. What such an operation takes is copied to the program's process and what it gives back to
the cards, so that programs run which need one now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from penstock.card.device.transfers import to_cpu

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from penstock.card.device.session import Session

_OURS_TO_BRING = {"aten", "prims", "penstock"}


def is_computable(operation: OpOverload) -> bool:
    """Whether it is of another package, has a CPU kernel, and only makes new tensors."""
    schema = operation._schema
    values = [*schema.arguments, *schema.returns]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CPU")
    return (
        has_kernel
        and operation.namespace not in _OURS_TO_BRING
        and all(one.alias_info is None for one in values)
    )


def compute(session: Session, operation: OpOverload, args: Any, kwargs: Any) -> Any:
    """Calls it with copies on the CPU; its results are on the cards.

    Raises:
        CardError: a card is lost.
        RuntimeError: its kernel refuses the arguments.
    """

    def to_program(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return to_cpu(session, value, operation.name()) if _is_own(value.device) else value
        return torch.device("cpu") if isinstance(value, torch.device) and _is_own(value) else value

    def to_cards(value: Any) -> Any:
        return value.to("penstock") if isinstance(value, torch.Tensor) else value

    args, kwargs = _pytree.tree_map(to_program, (args, kwargs))
    return _pytree.tree_map(to_cards, operation(*args, **kwargs))


def _is_own(device: torch.device) -> bool:
    return device.type == "penstock"
