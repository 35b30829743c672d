"""`fake_mode`: PyTorch's fake tensors, set up for tracing ordinary programs."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterator


_ATTENTION_PLACE = 4
_DROPOUT_PLACES = {  # functions that dispatch to fused attention, and the place of their dropout
    torch.nn.functional.scaled_dot_product_attention: _ATTENTION_PLACE,
    torch.nn.functional.multi_head_attention_forward: 10,
}


class FusedAttention(TorchFunctionMode):
    """Attention with dropout as accelerators do it: in one kernel, which keeps no scores.

    On the CPU, only attention without dropout is fused. The dropout itself costs elements alone.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Leaves out the dropout of attention whose scores nobody asked for."""
        kwargs = dict(kwargs or {})
        place = _DROPOUT_PLACES.get(func)
        if place is not None and not kwargs.get("need_weights", place != _ATTENTION_PLACE):
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


@contextlib.contextmanager
def fake_mode() -> Iterator[Any]:
    """The mode in which tensors have shapes and no data, also tensors that exist already.

    Attention is fused, as on accelerators. PyTorch's fast paths, which hide several contractions in
    one operation, are off while functions are overridden. What it logs about a wrong shape is
    left out, as the error that follows says it.
    """
    mode: Any = FakeTensorMode(allow_non_fake_inputs=True)
    # PyTorch notes a weak reference to each fake tensor that an operation makes, and `module.to(…)`
    # and `.half()` refuse tensors to which there are weak references.
    mode.fake_tensor_converter.set_tensor_memo = lambda _meta, _fake: None
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with mode, FusedAttention(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing accelerators, and of PyTorch's internals
            yield mode
    finally:
        logger.setLevel(level)
