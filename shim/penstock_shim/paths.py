"""Where the installed libraries lie."""

from __future__ import annotations

from pathlib import Path

MOUNTED_TENANT = "/run/penstock-tenant"  # also in shim/native/common/tenant_directory.h
"""Where a container has its tenant's pages, and below `driver` the simulated driver."""
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
    """Where the simulated `libcuda.so.1` and `libnvidia-ml.so.1` lie. Raises FileNotFoundError."""
    return _installed("sim")


def container_hook_path() -> Path:
    """What a container runtime starts for every container of ours. Raises FileNotFoundError."""
    return _installed("bin/penstock-container-hook")


def aside_path() -> Path:
    """What does for another process what may never end. Raises FileNotFoundError."""
    return _installed("bin/penstock-aside")


def coverage_table() -> Path:
    """What the shim does with every symbol, as JSON. Raises FileNotFoundError."""
    return _installed("coverage.json")


def workload_path(name: str) -> Path:
    """A benchmark's program, such as `penstock-latency`. Raises FileNotFoundError."""
    return _installed(f"bin/{name}")


def examples_dir() -> Path:
    """Directory of the example programs that the demo runs. Raises FileNotFoundError."""
    return _installed("examples")
