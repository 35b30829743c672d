"""Which driver a program gets, and whether contexts of it are shared by MPS."""

import ctypes
import os
import re
from pathlib import Path

import driver
from say import say

MPS_ENABLED = 133


def main():
    version, shared = ctypes.c_int(), ctypes.c_int(-1)
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    driver.call("cuInit", 0)
    result = driver.code("cuDeviceGetAttribute", ctypes.byref(shared), MPS_ENABLED, 0)
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    say(
        version=version.value,
        files=sorted({os.path.realpath(p) for p in mapped if re.search(r"/libcuda\.so", p)}),
        mps_attribute=shared.value if not result else None,
        mps_attribute_code=result,
        mps_control=(pipes / "control").exists(),
        mps_daemons=sorted(
            name for folder in Path("/proc").glob("[0-9]*")
            if (name := comm(folder)).startswith("nvidia-cuda-mps")
        ),
    )  # fmt: skip


def comm(folder):
    try:
        return (folder / "comm").read_text().strip()
    except OSError:
        return ""


main()
