"""The CUDA headers with which C programs of the tests are compiled."""

from __future__ import annotations

from pathlib import Path

import nvidia


def cuda_include() -> Path:
    """The folder of cuda.h, from the PyPI package that the shim itself is built with."""
    for root in nvidia.__path__:
        for header in Path(root).glob("*/include/cuda.h"):
            return header.parent
    raise FileNotFoundError("no cuda.h: install nvidia-cuda-runtime")
