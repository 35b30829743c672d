"""First use: what torch needs before the first tensor is made on the device, and then.

torch calls `_lazy_init` before nearly all ways to make the first tensor, and kernels are registered
there. The other ways (`torch.asarray` of an array of NumPy, and operations that are called as
`torch.ops.aten.…`, as compiled graphs do) end in a kernel that is used where there is no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.card.device import module

if TYPE_CHECKING:
    from torch._ops import OpOverload

_library = torch.library.Library("_", "IMPL")


def prepare() -> None:
    """Registers the kernel for operations that have no other on the device."""
    from penstock.card.device.patches import patch

    _library.fallback(_without_kernel, "PrivateUse1")
    patch()


def _without_kernel(operation: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Registers all kernels and calls the operation again.

    Raises:
        NotImplementedError: they are registered, none is for this operation, and it cannot be
            computed in the program's process.
        PenstockError: the device cannot be used.
    """
    from penstock.card.device import start

    if start.is_registered():
        from penstock.card.device import foreign

        if foreign.is_computable(operation):
            return foreign.compute(start.session(), operation, args, kwargs)
        raise NotImplementedError(
            f"device penstock has no {operation.name()}: call it with tensors on the CPU"
        )
    module._lazy_init()
    return operation(*args, **kwargs)
