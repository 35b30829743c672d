"""Paths of the installed native libraries and programs."""

from __future__ import annotations

from pathlib import Path

MOUNTED_TENANT = "/run/penstock-tenant"  # also in shim/native/common/tenant_directory.h
"""Directory in a container that holds its tenant's pages and, in `driver`, the simulated driver."""
_PACKAGE = Path(__file__).resolve().parent


def _installed(relative: str) -> Path:
    path = _PACKAGE / relative
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing because this installation has no native parts; "
            "install the package with pip instead of running it from the source tree"
        )
    return path


def so_path() -> Path:
    """Returns the path of the shim, `libpenstock.so`. Raises FileNotFoundError."""
    return _installed("lib/libpenstock.so")


def nvml_so_path() -> Path:
    """Returns the path of the NVML view, `libpenstock-nvml.so`. Raises FileNotFoundError."""
    return _installed("lib/libpenstock-nvml.so")


def sim_dir() -> Path:
    """Returns the folder of the simulated libcuda and libnvidia-ml. Raises FileNotFoundError."""
    return _installed("sim")


def container_hook_path() -> Path:
    """Returns the path of the hook for container runtimes. Raises FileNotFoundError."""
    return _installed("bin/penstock-container-hook")


def aside_path() -> Path:
    """Returns the path of `penstock-aside`. Raises FileNotFoundError."""
    return _installed("bin/penstock-aside")


def coverage_table() -> Path:
    """Returns the path of the coverage table in JSON. Raises FileNotFoundError."""
    return _installed("coverage.json")


def workload_path(name: str) -> Path:
    """Returns the path of a benchmark's program, `penstock-…`. Raises FileNotFoundError."""
    return _installed(f"bin/{name}")


def examples_dir() -> Path:
    """Returns the directory of the demo's example programs. Raises FileNotFoundError."""
    return _installed("examples")
