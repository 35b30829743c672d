"""Programs that reach the driver in every way there is, compiled once, run under the preload."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_shim import paths

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
sys.path.append(str(HERE))  # tests are imported by file, so helpers beside them need this

import real_driver  # noqa: E402  # found through the line above


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory, cuda_include):
    folder = tmp_path_factory.mktemp("programs")

    def compile_program(source: str, *options: str, name: str | None = None) -> Path:
        output = folder / (name or Path(source).stem)
        if not output.exists():
            command = [
                "gcc",
                "-O1",
                "-Wall",
                "-Werror",
                f"-I{cuda_include}",
                HERE / "programs" / source,
            ]
            subprocess.run([*command, "-o", output, *options], check=True)
        return output

    return compile_program


@pytest.fixture(scope="session")
def cuda_include() -> Path:
    import nvidia

    for root in nvidia.__path__:
        for include in Path(root).glob("*/include"):
            if (include / "cuda.h").exists():
                return include
    raise FileNotFoundError("no cuda.h: install nvidia-cuda-runtime")


@pytest.fixture(scope="session")
def real_libcuda() -> Path:
    """A real driver library; where it cannot be had, what needs it is skipped with the reason."""
    try:
        return real_driver.find(REPOSITORY / "build" / "real-driver")
    except real_driver.NotToBeHad as why:
        pytest.skip(f"no real driver library to compare with: {why}")


@pytest.fixture(scope="session")
def preloaded():
    """The environment of a program with the shim (or other libraries) preloaded."""

    def environment(*libraries: Path, **variables: str) -> dict[str, str]:
        names = " ".join(str(library) for library in libraries or (paths.so_path(),))
        return {**os.environ, "LD_PRELOAD": names, **variables}

    return environment
