"""NVIDIA's Multi-Process Service: whether programs that we start become its clients."""

from __future__ import annotations

import os
import stat
from pathlib import Path

VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT = "/tmp/nvidia-mps"  # noqa: S108 - its own


def pipe_directory() -> Path:
    """Where programs of this environment look for a control daemon."""
    return Path(os.environ.get(VARIABLE) or _DEFAULT)


def has_control_pipe() -> bool:
    """Whether a control daemon has its pipe there, as the driver and the shim look for it."""
    try:
        mode = (pipe_directory() / "control").stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
