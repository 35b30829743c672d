"""Paths inside a container, which the shim and the container hook also use."""

from __future__ import annotations

from penstock_shim.paths import MOUNTED_TENANT

TENANT = MOUNTED_TENANT

DRIVER = f"{TENANT}/driver"
SHIM = "/run/penstock-shim"
"""The shim libraries of one release."""
PRELOAD = f"{SHIM}/preload"
"""An empty folder of the release, where the hook keeps the container's /etc/ld.so.preload."""

CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
SHIMS = {CUDA: "libpenstock.so", NVML: "libpenstock-nvml.so"}
"""The shim library that replaces each driver library."""
STANDING_IN = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
"""Where images look for the driver: on Debian and its derivatives, and elsewhere."""
