"""Paths of the installed libraries and programs."""

from __future__ import annotations

from pathlib import Path

MOUNTED_TENANT = "/run/penstock-tenant"  # also in shim/native/common/tenant_directory.h
"""Directory in a container with its tenant's pages and, below `driver`, the simulated driver."""
_PACKAGE = Path(__file__).resolve().parent


def _installed(relative: str) -> Path:
    path = _PACKAGE / relative
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: this installation has no native parts; "
            "install the package with pip instead of running it from the source tree"
        )
    return path


def so_path() -> Path:
    """The shim to preload, `libpenstock.so`. Raises FileNotFoundError."""
    return _installed("lib/libpenstock.so")


def nvml_so_path() -> Path:
    """The NVML view to preload, `libpenstock-nvml.so`. Raises FileNotFoundError."""
    return _installed("lib/libpenstock-nvml.so")


def sim_dir() -> Path:
    """Folder of the simulated `libcuda.so.1` and `libnvidia-ml.so.1`. Raises FileNotFoundError."""
    return _installed("sim")


def container_hook_path() -> Path:
    """The hook that container runtimes run for our containers. Raises FileNotFoundError."""
    return _installed("bin/penstock-container-hook")


def aside_path() -> Path:
    """The helper program for operations that may never return. Raises FileNotFoundError."""
    return _installed("bin/penstock-aside")


def coverage_table() -> Path:
    """The JSON table of how the shim handles each symbol. Raises FileNotFoundError."""
    return _installed("coverage.json")


def workload_path(name: str) -> Path:
    """A benchmark's program, such as `penstock-latency`. Raises FileNotFoundError."""
    return _installed(f"bin/{name}")


def examples_dir() -> Path:
    """Directory of the example programs that the demo runs. Raises FileNotFoundError."""
    return _installed("examples")
