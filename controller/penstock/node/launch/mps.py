"""NVIDIA Multi-Process Service (MPS): whether programs that we start become its clients."""

from __future__ import annotations

import os
import stat
from pathlib import Path

VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT = "/tmp/nvidia-mps"  # noqa: S108 - MPS's own default


def pipe_directory() -> Path:
    """The directory where programs with this environment look for a control daemon's pipe."""
    return Path(os.environ.get(VARIABLE) or _DEFAULT)


def has_control_pipe() -> bool:
    """Whether a control daemon's pipe exists where the driver and the shim look for it."""
    try:
        mode = (pipe_directory() / "control").stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
