"""`fake_mode`: PyTorch's fake tensors, set up for tracing ordinary programs."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def fake_mode() -> Iterator[Any]:
    """The mode in which tensors have shapes and no data, also tensors that exist already.

    Fast paths of PyTorch that hide several contractions in one operation are off. What PyTorch logs
    about a wrong shape is left out, because the error that follows says it.
    """
    mode: Any = FakeTensorMode(allow_non_fake_inputs=True)
    # PyTorch notes a weak reference to each fake tensor that an operation makes, and `module.to(…)`
    # and `.half()` refuse tensors to which there are weak references.
    mode.fake_tensor_converter.set_tensor_memo = lambda _meta, _fake: None
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level, fast_path = logger.level, torch.backends.mha.get_fastpath_enabled()
    logger.setLevel(logging.CRITICAL + 1)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing accelerators, and of PyTorch's internals
            yield mode
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        logger.setLevel(level)
